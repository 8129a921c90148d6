"""How well do plans cover, and what does planning cost? K-means against expected coverage, label-free estimate against truth.

    python benchmarks/planning.py --folder path/to/tiny-imagenet-60
"""
import argparse, resource, time
from argparse import Namespace

import pandas as pd
import torch

from closed_loop.auxset import AuxSet
from closed_loop.confidence import find_hard, fit_temperature
from closed_loop.loaders import as_dl
from closed_loop.look import look
from closed_loop.plan import coverage_plan, expected_coverage, fewest_tasks, kmeans_plan, true_coverage
from accuracy import folder_problem, glyph_problem
from common import write


def cover(name, seed, model, train, calib, test, K, Qs, eps=.7):
    "True and expected coverage of both planners, and the training images of one epoch over the plan"
    counts = AuxSet(train).counts()
    z,y = look(model, as_dl(test)); zc,yc = look(model, as_dl(calib))
    T,hard = fit_temperature(zc,yc),find_hard(z,eps)
    raw,honest = z.softmax(1),(z/T).softmax(1)
    for Q in Qs:
        plans = {'kmeans':lambda: kmeans_plan(raw,hard,K,Q), 'coverage':lambda: coverage_plan(honest,hard,K,Q), 'coverage, 16 starts':lambda: coverage_plan(honest,hard,K,Q,starts=16)}
        for planner,make in plans.items():
            t = time.perf_counter(); p = make(); t = time.perf_counter()-t
            yield dict(data=name, seed=seed, N=len(y), hard=len(hard), C=z.shape[1], K=K, Q=Q, planner=planner, price=p.price(counts), T=T, true=true_coverage(p,y),
                       expected_raw=expected_coverage(p,raw), expected=expected_coverage(p,honest), seconds=t)


def large(n=50_000, C=1000, Q=400, K=10):
    "The size of ImageNet, the less sure half of it hard: simulated logits of classes that come in groups of look-alikes"
    g = torch.Generator().manual_seed(0)
    centre = torch.randn(C//5,64,generator=g).repeat_interleave(5,0)+.5*torch.randn(C,64,generator=g)
    y = torch.randint(C,(n,),generator=g)
    P = (((centre[y]+1.6*torch.randn(n,64,generator=g))@centre.T-centre.pow(2).sum(1)/2)/3).softmax(1)
    hard = P.amax(1).argsort()[:n//2].sort().values
    plans = {'coverage':lambda: coverage_plan(P,hard,K,Q), 'coverage, fewest tasks for 95 %':lambda: fewest_tasks(P,hard,K,.95,Q), 'kmeans':lambda: kmeans_plan(P,hard,K,Q)}
    for planner,make in plans.items():
        t = time.perf_counter(); p = make(); t = time.perf_counter()-t
        yield dict(data='simulated', N=n, hard=len(hard), C=C, K=K, Q=len(p), planner=planner, price=p.price([1300]*C), true=true_coverage(p,y), expected=expected_coverage(p,P),
                   seconds=t, peak_GB=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/2**20)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--folder', help='an image folder with train/ and val/')
    for k,v in dict(seeds=4, K=10, size=32, width=16, base_epochs=12).items(): p.add_argument(f'--{k}', type=int, default=v)
    args = p.parse_args(); rows = []
    problems = {'glyphs':lambda seed: glyph_problem('middling',seed,args)}
    if args.folder: problems['folder'] = lambda seed: folder_problem(seed, Namespace(**{**vars(args),'data':args.folder}))
    for name,make in problems.items():
        for seed in range(args.seeds):
            model,train,calib,test,_ = make(seed)
            rows += cover(name, seed, model, train, calib, test, args.K, (20,40,100,200))
    rows += large()
    df = pd.DataFrame(rows); write('planning', df); print(df.round(3).to_string())


if __name__ == '__main__': main()
