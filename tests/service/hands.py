"""A worker elsewhere, in the hands of a test: what a shell script would send, one request at a time."""

from typing import Any

from tests.service.ground import Answer, Key, Served


class Hand:
    """One registered worker."""

    def __init__(self, server: Served, *, token: Key | None = None, **said: Any) -> None:
        self.server = server
        self.token = token
        registered = server.ask("POST", "/workers", {"name": "hand", "tasks": ["work"], **said}, token=token)
        assert registered.status == 201, registered.json
        self.id = registered.json["worker"]
        self.registered = registered.json

    def ask(self, method: str, path: str, json: Any = None, **more: Any) -> Answer:
        """Something of this worker."""
        return self.server.ask(method, f"/workers/{self.id}{path}", json, token=self.token, **more)

    def claim(self, **said: Any) -> list[dict[str, Any]]:
        """Take jobs."""
        answer = self.ask("POST", "/claim", said)
        assert answer.status == 200, answer.json
        jobs: list[dict[str, Any]] = answer.json["jobs"]
        return jobs

    def beat(self, *held: dict[str, Any]) -> Answer:
        """A sign of life with these jobs."""
        leases = [{name: job[name] for name in ("id", "number", "token")} for job in held]
        return self.ask("POST", "/beat", {"held": leases})

    def settle(self, job: dict[str, Any], outcome: str, **said: Any) -> Answer:
        """Say how a run ended."""
        body = {"token": job["token"], "outcome": outcome, **said}
        return self.ask("POST", f"/jobs/{job['id']}/settle", body)

    def tell(self, job: dict[str, Any], what: str, **said: Any) -> Answer:
        """Progress, or a checkpoint."""
        return self.ask("POST", f"/jobs/{job['id']}/{what}", {"token": job["token"], **said})
