"""What parent and child processes of ours share: messages, memory, a way to find the app, and a common death."""
