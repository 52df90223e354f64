"""An engine process without a cluster: it holds so many sites on this machine (the first argument), each a node of its
own with one made-up GPU, and starts one again that ends. `bisect_cfg.engines.sites` says what it reads and says."""

import json
import subprocess
import sys
import threading

LOCK = threading.Lock()


def say(**message):
    with LOCK:
        print(json.dumps(message), flush=True)


def hold(number, sites):
    while True:
        site = sites[number] = subprocess.Popen(
            [sys.executable, "-P", "-m", "bisect_cfg.engines.site_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        site.wait()
        say(op="up", slot=number, node=f"node-{number}", devices=[str(number)], jobs=1)
        UP.add(number)
        CHANGED.release()
        for line in site.stdout:
            say(op="line", slot=number, line=line.decode())
        if CLOSING.is_set():
            return
        say(op="down", slot=number, why="its site has ended")


CLOSING, SITES = threading.Event(), {}
UP, CHANGED = set(), threading.Semaphore(0)
threads = [threading.Thread(target=hold, args=(number, SITES)) for number in range(int(sys.argv[1]))]
for thread in threads:
    thread.start()
while len(UP) < len(threads):
    CHANGED.acquire()
say(op="all_up")
for line in sys.stdin:
    message = json.loads(line)
    try:
        SITES[message["slot"]].stdin.write(message["line"].encode())
        SITES[message["slot"]].stdin.flush()
    except (KeyError, OSError):
        pass
CLOSING.set()
for site in SITES.values():
    site.stdin.close()
for thread in threads:
    thread.join()
