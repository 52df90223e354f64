"""A request over the network that failed."""

from __future__ import annotations

import re

from bisect_cfg.diagnosis.advice.reading import Advice, RaisedError, belongs_to, place_of


def unreachable(read: RaisedError) -> Advice | None:
    """A request over the network that failed."""
    if re.search(r"c10d|NCCL|ProcessGroup|TCPStore|[Rr]endezvous|client socket|server socket", read.message):
        return None  # processes of the run among each other
    if not re.search(
        r"Connect|Timeout|HTTP|SSL|Proxy|Max retries|APIError|RateLimit|Authentication"
        r"|RemoteDisconnected|Unauthorized|status code",
        f"{read.type} {read.message}",
    ):
        return None
    message = read.message
    found = re.search(
        r"host='?(?P<host>[\w.-]+)'?(?:, port=(?P<port>\d+))?"
        r"|https?://(?P<url>[\w.-]+)(?::(?P<urlport>\d+))?"
        r"|(?P<ip>\d+\.\d+\.\d+\.\d+):(?P<ipport>\d+)",
        message,
    )
    status = re.search(
        r"(?:[Ss]tatus|[Cc]ode|HTTP|[Ee]rror|[Ff]ailed|response)\W{0,8}\b(400|401|403|404|408|422|429|500"
        r"|502|503|504)\b|^\W{0,2}(400|401|403|404|408|422|429|500|502|503|504) "
        r"(?:Client|Server|Bad|Un\w+|Forbidden|Not|Too|Internal|Service|Gateway)\b",
        message,
    )
    if not found and not status:
        return _broken_off(read)
    number = next((one for one in status.groups() if one), "") if status else ""
    host = next((one for one in (found["host"], found["url"], found["ip"]) if one), "") if found else ""
    port = next((one for one in (found["port"], found["urlport"], found["ipport"]) if one), "") if found else ""
    address = f"{host}{':' + port if port else ''}" or "the server"
    meanings = {
        "400": "it does not accept this request; its answer, or its own log at that moment, says why",
        "401": "it wants a key (token), or does not accept the one it was given",
        "403": "it does not allow this",
        "404": "it has no such address or name (misspelt, another server, or another version of it)",
        "408": "it waited too long",
        "422": "it does not take the request in this form (versions that differ, most often)",
        "429": "too many requests at once", "500":
            "the server itself failed: its own log says why", "502":
            "what is behind the gateway gave no valid answer", "503":
            "it is not ready or overloaded", "504": "it took too long",
    }  # fmt: skip
    said = (
        f"{address} answered {number}: {meanings[number]}."
        if number
        else f"{address} could not be reached or did not answer in time."
        if re.search(
            r"Timeout|[Tt]imed out|refused|resolve|Max retries|unreachable|[Cc]onnect", f"{read.type} {message}"
        )
        else f"A request to {address} failed."
    )
    own = bool(re.match(r"(?:localhost|0\.0\.0\.0|127\.|10\.|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.)", host))
    own = own or bool(re.fullmatch(r"[\d.]+", host))  # whoever asks a bare number asks a machine of one's own
    place = place_of(read.caller)
    if (own or "." not in host) and number in ("400", "422", "500"):
        steps = (
            "the server's own output right before that: an exception or a refusal there is the cause, and names what "
            "it was given",
            "server and client of versions that are made for each other",
        )
    elif own or not host or (host and "." not in host):
        steps = (
            f"is the server at {address} still running, and ready? Its own log says why it is not; "
            f"curl http://{address}/ from this machine"
            if host
            else "is the server still running, and ready? Its own log says why it is not",
            "http_proxy set in the environment catches local addresses too: "
            "no_proxy=localhost,127.0.0.1 and the host's own address",
            "fewer requests at once, and a longer time limit in the script",
        )
    elif "huggingface" in host:
        steps = (
            f"reach {host} from this machine (compute nodes often cannot), or HF_ENDPOINT of a mirror",
            "download the model before and give its folder; HF_HUB_OFFLINE=1 then asks nobody",
        )
    elif "wandb" in host:
        steps = (
            "WANDB_MODE=offline, or report_to=none; the run does not need it",
            f"reach {host} from this machine (proxy, firewall)",
        )
    else:
        steps = (
            f"does {host} answer from this machine (curl, proxy, key, quota)?",
            "what calls it during training should survive a failure: retry, a time limit, and a reward for the rest",
        )
    who = f" It is called by {belongs_to(read.caller)} ({place})." if place else ""
    return Advice("network", said + who, steps, place)


def _broken_off(read: RaisedError) -> Advice | None:
    """A connection that ended, where neither message nor status say whose."""
    if read.library not in _CLIENTS or not re.search(r"Connect|Timeout|RemoteDisconnected|Protocol", read.type):
        return None
    place = place_of(read.caller)
    who = f" The request was made by {belongs_to(read.caller)} ({place})." if place else ""
    steps = (
        "what answers there (a server of one's own, an API, the hub): its log at that time says why it ended or did "
        "not answer; does it still run?",
        "a proxy in between (http_proxy, https_proxy) may have ended it: no_proxy for addresses of one's own",
        "once in a long run: resume from the last checkpoint, and let what makes the request try again",
    )
    return Advice("network", f"A connection to a server was broken off, or got no answer in time.{who}", steps, place)


_CLIENTS = {"requests", "urllib3", "httpx", "httpcore", "aiohttp", "http"}
"""Packages whose exceptions are of requests over the network."""
