#!/usr/bin/env python3
"""A worker over HTTP, with nothing but the standard library:

    python3 worker.py http://127.0.0.1:4280 my-worker

It takes jobs `upper`, and answers with their arguments in capitals. With GAPLESS_TOKEN it proves who it is.
"""
import json, os, sys, threading, urllib.error, urllib.request

base = f"{sys.argv[1].rstrip('/')}/v1/workers/{sys.argv[2]}"
headers = {"Content-Type": "application/json"}
if "GAPLESS_TOKEN" in os.environ:
    headers["Authorization"] = f"Bearer {os.environ['GAPLESS_TOKEN']}"


def post(what, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{base}/{what}", data, headers, method="POST")
    with urllib.request.urlopen(request, timeout=70) as answer:
        return json.loads(answer.read() or "null")


def keep(attempt, every, over):
    """Extends the lease until the attempt is over. A function that takes long looks at `over` as well."""
    while not over.wait(every) and not post("extend", attempt)["cancelled"]:
        pass
    over.set()


def work(job):
    return " ".join(job["args"]).upper() + "\n"


while True:
    try:
        job = post("take?exec=upper&wait_ms=30000")
        if job is None:
            continue
        attempt = {key: job[key] for key in ("job_id", "attempt", "epoch")}
        over = threading.Event()
        threading.Thread(target=keep, args=(attempt, job["lease_ms"] / 3000, over), daemon=True).start()
        try:
            end, left = "complete", {"stdout": work(job)}
        except Exception as error:
            end, left = "fail", {"stderr": f"{error}\n", "reason": "the function failed"}
        over.set()
        post(end, attempt | left)
    except urllib.error.HTTPError as refused:
        print(refused.read().decode(), file=sys.stderr)
