"Test notebooks as `nbdev_test` does, each in a process of its own: what one registers must not be there for the next."
import multiprocessing, multiprocessing.connection, os, signal, sys, time
from pathlib import Path

from nbdev.config import get_config
from nbdev.doclinks import nbglob
from nbdev.test import test_nb

ROOT = Path(__file__).resolve().parent.parent
JOBS = min(4, os.cpu_count() or 1)  # at once


def run(path, flags):
    "The exit code says whether a notebook passes"
    ok, _ = test_nb(path, skip_flags=flags)
    sys.exit(not ok)


def main():
    "All notebooks, or those named on the command line; slow imports are made once, before the processes part"
    os.environ['IN_TEST'] = '1'
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts this in the background has it ignored
    paths = [Path(p).resolve() for p in sys.argv[1:]]
    os.chdir(ROOT)
    import fastai.vision.all, matplotlib.pyplot, pandas, sklearn.cluster, torchvision  # noqa: F401
    flags, ctx, failed = get_config().tst_flags.split(), multiprocessing.get_context('fork'), []
    todo, running = paths or [Path(p).resolve() for p in nbglob(as_path=True).sorted()], {}
    while todo or running:
        while todo and len(running) < JOBS:
            child = ctx.Process(target=run, args=(todo[0], flags))
            child.start()
            running[child.sentinel] = child, todo.pop(0), time.perf_counter()
        for s in multiprocessing.connection.wait(list(running)):
            child, p, t = running.pop(s)
            child.join()
            print(f"{'ok    ' if child.exitcode == 0 else 'FAILED'} {time.perf_counter()-t:6.1f} s  {p.relative_to(ROOT)}", flush=True)
            if child.exitcode: failed.append(p.name)
    if failed: sys.exit(f"Notebooks that fail: {', '.join(failed)}")


if __name__ == '__main__': main()
