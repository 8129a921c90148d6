"""What a run that is stopped has gained: the order by worth against the order that shares classes, and what keeping tasks costs.

    python benchmarks/anytime.py                       # two plans in two orders, 60 s each on glyphs, the rest of the plans, and the store's overhead
    python benchmarks/anytime.py --seconds 6 --Q 20 --repeats 1
"""
import argparse, tempfile, time

import numpy as np
import pandas as pd
import torch

from closed_loop import core, schedule
from closed_loop.core import cli_predict
from closed_loop.data.glyphs import glyph_aug, glyph_model, glyphs
from closed_loop.run import run_task
from common import write

ORDERS = dict(worth=schedule.by_worth, shared=lambda plan, probs, counts, **kw: schedule.order_tasks(plan))


def timed(order, data, **kw):
    "A run in some order: its result, its seconds, when each task was finished, and when the first was begun"
    done,begun,t = [],[],time.perf_counter()
    def watched(run, task):
        begun.append(time.perf_counter()-t)
        looks = run_task(run, task)
        done.append((time.perf_counter()-t, task.members))
        return looks
    schedule.run_task,core.by_worth = watched,ORDERS[order]
    try: return cli_predict(**data, device='cpu', progress=False, **kw),time.perf_counter()-t,done,begun[0] if begun else 0.
    finally: schedule.run_task,core.by_worth = run_task,schedule.by_worth


def gains(res, done, start):
    "Answers mended less destroyed by several views, which come with the first look, and by each task, as the whole run decides"
    a,v,b = (p.argmax(1)==res.targets for p in (res.first,res.base_probs,res.probs))
    def gain(was, now, m=slice(None)): return int(now[m].sum()-was[m].sum())
    return [(start,gain(a,v)), *((t,gain(v,b,m)) for t,m in done)]


def curve(args, data, settings):
    "Gain over time, in both orders"
    with tempfile.TemporaryDirectory() as d:
        runs = {o:timed(o, data, minutes=args.seconds/60, **({'store':d} if o=='worth' else {}), **settings) for o in ORDERS}
        res,*_ = timed('worth', data, store=d, **settings)   # the rest of the plan
    whole,rows = sum(g for _,g in gains(res, [(0,t.members) for t in res.plan], 0)),[]
    for o,(part,seconds,done,start) in runs.items():
        g = gains(res, done, start)
        at = {s:sum(k for t,k in g if t<=s) for s in np.linspace(0, args.seconds, 13)}
        print(f'{o}: stopped after {seconds:.1f} s of {args.seconds}, {len(done)} of {len(res.plan)} tasks; '
              f'gain {at[args.seconds/2]} at half the time, {at[args.seconds]} in time, {whole} of all tasks')
        rows += [dict(order=o, seconds=s, gain=k, share_of_stopped=k/max(1,at[args.seconds]), share_of_whole=k/max(1,whole), whole=whole,
                      tasks=sum(t<=s for t,_ in g[1:]), all_tasks=len(res.plan), asked=args.seconds, took=seconds, answered=100*part.flips().gain) for s,k in at.items()]
    return pd.DataFrame(rows)


def overhead(args, data, settings):
    "Seconds with a store over seconds without, side by side"
    rows = []
    for i in range(args.repeats):
        with tempfile.TemporaryDirectory() as d:
            s = {k:timed('worth', data, **kw, **settings)[0].times['second look'] for k,kw in sorted(dict(plain={}, kept=dict(store=d)).items(), reverse=bool(i%2))}
        rows.append(dict(repeat=i, **s, ratio=s['kept']/s['plain']))
    df = pd.DataFrame(rows)
    print(f"store: {df.ratio.median():.3f} times the seconds without, spread {df.ratio.min():.3f}-{df.ratio.max():.3f}")
    return df


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--seconds', type=float, default=60)
    p.add_argument('--Q', type=int, default=60)
    p.add_argument('--K', type=int, default=10)
    p.add_argument('--epochs', type=int, default=5)
    p.add_argument('--repeats', type=int, default=5)
    p.add_argument('--only', choices=('curve','overhead'))
    p.add_argument('--plans', type=int, default=2, help='the first one or both')
    args = p.parse_args()
    torch.set_num_threads(1)
    data = dict(model=glyph_model(progress=False), train=glyphs(transform=glyph_aug()), test=glyphs(30, split='test'))
    cli_predict(**data, device='cpu', progress=False, Q=1, cover=None, epochs=1)   # once to warm up
    if args.only!='overhead':
        plans = {'the default preset, 5 epochs':dict(epochs=5, generalist=0), f'{args.Q} tasks':dict(Q=args.Q, K=args.K, epochs=args.epochs, cover=None, merge=False)}
        write('anytime', pd.concat([curve(args, data, kw).assign(plan=name) for name,kw in list(plans.items())[:args.plans]]))
    if args.only!='curve': write('anytime_store', overhead(args, data, dict(Q=10, K=args.K, epochs=2, cover=None)))


if __name__ == '__main__': main()
