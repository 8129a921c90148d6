"""What Ray costs: two workers beside one process

    python benchmarks/ray_overhead.py

Processor seconds of all processes, so that other work on the machine does not count: on one core they are the time it takes.
Workers import the library and open the problem before their first task; that is not counted, nor is the start of Ray."""
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


def run(executor, problem, cfg, plan):
    "Processor seconds and looks of a plan"
    start = spent()
    with executor(problem, cfg, 'cpu', plan=plan) as execute:
        looks = {id(t): o for t, o in execute(iter(plan))}
        end = spent()
    workers = sum(o.seconds for o in looks.values()) if executor is cluster.ray_executor else 0
    return end-start+workers, [looks[id(t)] for t in plan]


if __name__ == '__main__':
    p = argparse.ArgumentParser()
    p.add_argument('--tasks', type=int, default=24)
    args = p.parse_args()
    torch.set_num_threads(1)
    cluster.Worker = Metered
    torch.manual_seed(0)
    some, net = glyph_classes()[:C], glyph_net(C, 12)
    problem, cfg = open_all(net, *[glyphs(n, s, classes=some) for n, s in ((EACH, 'train'), (4, 'test'))], preset='paper', bs=64)
    plan = Plan([Task(list(range(i, C*4, args.tasks)), [(7*i+j) % C for j in range(K)]) for i in range(args.tasks)])
    rows = []
    with problem.at_work('cpu'):
        for name, executor in dict(serial=local, ray=cluster.ray_executor).items():
            if name == 'ray': ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)   # its start is not counted
            seconds, looks = run(executor, problem, cfg, plan)
            rows.append(dict(executor=name, task_seconds=seconds/len(plan), looks=looks))
        job = len(ray.cloudpickle.dumps((problem, cfg)))
    a, b = (o.pop('looks') for o in rows)
    assert all(torch.equal(x.second, y.second) for x, y in zip(a, b)), 'the looks differ'
    df = pd.DataFrame(rows)
    df['slower'] = df.task_seconds/df.task_seconds[0]-1
    df['met'] = df.slower <= .25
    df['job_bytes'], df['task_bytes'], df['looks_bytes'] = job, len(ray.cloudpickle.dumps(plan[0])), len(ray.cloudpickle.dumps(a[0]))
    df['weights_bytes'] = sum(t.nbytes for t in net.state_dict().values())
    write('ray_overhead', df)
    print(df.T.to_string())
