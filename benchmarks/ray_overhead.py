"""What Ray costs: two workers beside one process

    python benchmarks/ray_overhead.py

Seconds on the clock for a whole plan, in turns with one process, and processor seconds of all processes beside them.
Workers import the library and open the problem with their first task; a first plan is not counted, nor is the start of Ray."""
import argparse, time

import pandas as pd
import psutil
import ray
import torch

from closed_loop import cluster
from closed_loop.data.glyphs import glyph_classes, glyph_net, glyphs
from closed_loop.inputs import open_all
from closed_loop.plan import Plan, Task
from closed_loop.schedule import local
from common import write

C, K, EACH = 60, 10, 60


class Metered(cluster.Worker):
    "Tells the processor seconds of a task"
    def look(self, refs, task=None):
        t, res = time.process_time(), super().look(refs, task)
        if task is not None: res.seconds = time.process_time()-t
        return res


def spent():
    "Processor seconds of this process and of Ray's own, without workers"
    def of(p):
        try: return 0. if p.name().startswith('ray::') else sum(p.cpu_times()[:2])
        except psutil.NoSuchProcess: return 0.
    me = psutil.Process()
    return sum(map(of, [me, *me.children(recursive=True)]))


def run(executor, problem, cfg, plan, repeats):
    "Seconds on the clock, processor seconds, and looks of a plan, several times"
    with executor(problem, cfg, 'cpu', plan=plan) as execute:
        list(execute(iter(plan[:4])))   # workers import and open
        for _ in range(repeats):
            start, t = spent(), time.perf_counter()
            looks = {id(t): o for t, o in execute(iter(plan))}
            t = time.perf_counter()-t
            workers = sum(o.seconds for o in looks.values()) if executor is cluster.ray_executor else 0
            yield t, spent()-start+workers, [looks[id(t)] for t in plan]


if __name__ == '__main__':
    p = argparse.ArgumentParser()
    p.add_argument('--tasks', type=int, default=24)
    p.add_argument('--repeats', type=int, default=5)
    args = p.parse_args()
    torch.set_num_threads(1)
    cluster.Worker = Metered
    torch.manual_seed(0)
    some, net = glyph_classes()[:C], glyph_net(C, 12)
    problem, cfg = open_all(net, *[glyphs(n, s, classes=some) for n, s in ((EACH, 'train'), (4, 'test'))], preset='paper', bs=64)
    plan = Plan([Task(list(range(i, C*4, args.tasks)), [(7*i+j) % C for j in range(K)]) for i in range(args.tasks)])
    rows, first = [], None
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)   # its start is not counted
    with problem.at_work('cpu'):
        both = dict(serial=run(local, problem, cfg, plan, args.repeats), ray=run(cluster.ray_executor, problem, cfg, plan, args.repeats))
        for i, pair in enumerate(zip(*both.values())):   # in turns
            for name, (t, cpu, looks) in zip(both, pair):
                first = first or looks
                assert all(torch.equal(x.second, y.second) for x, y in zip(first, looks)), 'the looks differ'
                rows.append(dict(executor=name, repeat=i, task_seconds=t/len(plan), processor_seconds=cpu/len(plan)))
        job = len(ray.cloudpickle.dumps((problem, cfg)))
    df = pd.DataFrame(rows)
    a, b = (df[df.executor == k].task_seconds.reset_index(drop=True) for k in both)
    slower = (b/a-1).median()
    print(f'Ray is {slower:+.1%} slower, {(b/a-1).min():+.1%} to {(b/a-1).max():+.1%}')
    df['slower'], df['met'] = slower, slower <= .25
    df['job_bytes'], df['task_bytes'], df['looks_bytes'] = job, len(ray.cloudpickle.dumps(plan[0])), len(ray.cloudpickle.dumps(first[0]))
    df['weights_bytes'] = sum(t.nbytes for t in net.state_dict().values())
    write('ray_overhead', df)
    print(df.to_string())
