"""Notifications: rules that an app declares, and the targets of their messages.

    from shigoto.notify import Mail, on_failure, Webhook

    app = Shigoto(notify=[on_failure(to=[Mail(), Webhook("https://ops.example.org/jobs")])])

Imported by whoever uses it: an app without rules does not pay for it.
"""

from shigoto.notify.notification import Notification
from shigoto.notify.rules import on_dead_worker, on_failure, on_missed_schedule, on_queue_age
from shigoto.notify.signature import SignatureInvalid, sign_webhook, verify_webhook
from shigoto.notify.targets import Log, Mail, Webhook

__all__ = [
    "Log",
    "Mail",
    "Notification",
    "SignatureInvalid",
    "Webhook",
    "on_dead_worker",
    "on_failure",
    "on_missed_schedule",
    "on_queue_age",
    "sign_webhook",
    "verify_webhook",
]
