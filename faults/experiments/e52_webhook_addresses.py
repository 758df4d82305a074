"""E52: no webhook reaches a network of one's own, whatever its address looks like and whatever its name means next.

Every address of the world is ours (`tools/anywhere.py`), so each connection that is made is counted, where it went to.

numbers    loopback, private, link-local, shared, multicast and reserved networks: as usual, as one decimal, octal or
           hexadecimal number, cut short, in IPv6, mapped or translated into it
names      that mean such an address, or one beside a public one; and names that mean a public address when they are
           looked up first, and loopback a moment later (rebinding)
redirects  to the place where clouds keep their secrets
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

from msgspec import json

from faults.experiment import Experiment, Outcome, Setting
from faults.tools.anywhere import PUBLIC, PUBLIC6, Reached

WRAP = ("unshare", "--user", "--map-root-user", "--mount", "--net")
FORBIDDEN_HOSTS = (
    # As usual: one of each kind of network.
    "127.0.0.1", "127.8.9.10", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.254", "192.168.1.1",
    "169.254.169.254", "169.254.170.2", "100.64.0.1", "100.127.255.254", "192.0.0.8", "192.0.2.1", "198.18.0.1",
    "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
    # The same in other dresses.
    "2130706433", "017700000001", "0x7f000001", "0x7f.1", "127.1", "127.0.1", "0177.0.0.1", "0", "2852039166",
    "0xA9FEA9FE", "169.16689662", "0251.0376.0251.0376", "3232235777", "167772161",
    "localhost", "LOCALHOST", "localhost.", "ip6-localhost",
    # IPv6.
    "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::ffff:169.254.169.254]",
    "[::ffff:10.0.0.1]", "[::ffff:192.168.0.1]", "[::127.0.0.1]", "[::7f00:1]", "[64:ff9b::127.0.0.1]",
    "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::1]", "[2002:7f00:1::]", "[2002:a9fe:a9fe::1]", "[2001::1]",
    "[fc00::1]", "[fd00::1]", "[fd00:ec2::254]", "[fe80::1]", "[fec0::1]", "[ff02::1]", "[2001:db8::1]", "[100::1]",
    "[5f00::1]",
)  # fmt: skip
FORBIDDEN_NAMES = ("metadata.test", "mixed.test", "mixed6.test", "mapped.test")
ODD_URLS = (
    "http://127.0.0.1/",
    "https://127.0.0.1:22/",
    "https://user@127.0.0.1/",
    f"https://{PUBLIC}@127.0.0.1/",
    f"https://{PUBLIC}#@127.0.0.1/",
    f"https://{PUBLIC}\\@127.0.0.1/",
    "https://127.0.0.1%00.example.org/",
    "https:///127.0.0.1/",
    "https:127.0.0.1/",
    "//127.0.0.1/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:443/",
    "https://127。0。0。1/",
    "https://⑯⑨.254.169.254/",
)
REBINDING = ("rebinding.test", "rebinding6.test")
ALLOWED = {
    f"https://{PUBLIC}/": f"{PUBLIC} 443",
    f"https://[{PUBLIC6}]/": f"{PUBLIC6} 443",
    "https://public.test/": f"{PUBLIC} 443",
    "https://public6.test/": f"{PUBLIC6} 443",
}


def run(setting: Setting) -> Outcome:
    """Every address, by the code that is shipped; and the rebinding names by a build that resolves twice."""
    if reason := why_not():
        return Outcome(skipped=f"needs namespaces: {reason}")
    outcome = Outcome()
    forbidden = [f"https://{host}/" for host in (*FORBIDDEN_HOSTS, *FORBIDDEN_NAMES)] + list(ODD_URLS)
    rebinding = [f"https://{name}/" for name in REBINDING]
    redirect = "http://127.0.0.1:8080/"
    heard, reached = asked(
        [*({"url": url} for url in (*forbidden, *rebinding, *ALLOWED)), {"url": redirect, "internal": True}]
    )
    if heard != 5:
        outcome.wrong.append(f"the listeners heard {heard} of 5 connections that they should have heard")
    ends = {each.url: each for each in reached}
    for url in forbidden:
        if ends[url].addresses:
            outcome.wrong.append(f"{url} has reached {ends[url].addresses}")
        if ends[url].ended == "delivered":
            outcome.wrong.append(f"{url} was delivered")
    for url, place in zip(rebinding, (f"{PUBLIC} 443", f"{PUBLIC6} 443"), strict=True):
        if ends[url].addresses != [place]:
            outcome.wrong.append(
                f"{url} has reached {ends[url].addresses}, and {place} was what was looked at"
            )
    for url, place in ALLOWED.items():
        if ends[url].addresses != [place]:
            outcome.wrong.append(f"{url} has reached {ends[url].addresses} instead of {place}")
    if ends[redirect].addresses != ["127.0.0.1 8080"]:
        outcome.wrong.append(f"a redirect was followed to {ends[redirect].addresses}")
    _, broken = asked([{"url": url} for url in rebinding], "--careless")
    fell = sum(each.addresses in (["127.0.0.1 443"], ["::1 443"]) for each in broken)
    if fell != len(rebinding):
        outcome.wrong.append("a build that resolves twice was not led astray, so that nothing is shown")
    outcome.n = len(reached)
    outcome.figures = {
        "addresses": len(reached),
        "of them forbidden": len(forbidden),
        "forbidden connects": sum(len(ends[url].addresses) for url in forbidden),
        "led astray by rebinding, if names are resolved twice": fell,
    }
    return outcome


def asked(webhooks: list[dict[str, Any]], *options: str) -> tuple[int, list[Reached]]:
    """What became of them, in a world of their own; and how many trial connections the listeners heard there."""
    done = subprocess.run(
        [*WRAP, sys.executable, "-m", "faults.tools.anywhere", *options],
        input="".join(f"{json.encode(each).decode()}\n" for each in webhooks).encode(),
        capture_output=True,
        timeout=240,
        check=False,
        cwd=Path(__file__).parents[2],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SHIGOTO_WEBHOOK_SECRET": "0123456789abcdef"},
    )
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace"))
    first, *lines = done.stdout.splitlines()
    return json.decode(first)["heard"], [json.decode(line, type=Reached) for line in lines]


def why_not() -> str:
    """Why there can be no such world on this machine; nothing if there can."""
    try:
        trial = [*WRAP, "sh", "-c", "ip link set lo up && mount --bind /etc/hosts /etc/hosts"]
        done = subprocess.run(trial, capture_output=True, timeout=30, check=False)
    except OSError as error:
        return str(error)
    return done.stderr.decode(errors="replace").strip() if done.returncode else ""


EXPERIMENT = Experiment(
    id="E52", title="webhooks never reach a network of one's own", act=run, engines=("sqlite",)
)
