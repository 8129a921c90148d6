"""Which confidence score finds the mistakes? Shares of them among the least sure images, for each score and several budgets.

    python benchmarks/criteria.py
    python benchmarks/criteria.py --folder path/to/tiny-imagenet-60
"""
import argparse
from argparse import Namespace

import pandas as pd

from closed_loop.confidence import CRITERIA, find_hard
from closed_loop.loaders import as_dl
from closed_loop.look import look
from accuracy import folder_problem, glyph_problem
from common import write

BUDGETS = [i/20 for i in range(21)]


def caught(data, seed, model, test):
    "Of the images that are wrong, and of those whose true class is second to fifth, the share among the least sure"
    z,y = look(model, as_dl(test))
    wrong,top5 = z.argmax(1)!=y,(z.topk(5).indices==y[:,None]).any(1)
    for c in CRITERIA:
        for b in BUDGETS:
            hard = find_hard(z, quantile=b, criterion=c)
            yield dict(data=data, seed=seed, N=len(y), top1=100*(~wrong).float().mean().item(), criterion=c, budget=b,
                       wrong=(wrong[hard].sum()/wrong.sum()).item(), mendable=((wrong&top5)[hard].sum()/(wrong&top5).sum()).item())


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--folder', help='an image folder with train/ and val/')
    for k,v in dict(seeds=3, folder_seeds=1, size=32, width=16, base_epochs=12).items(): p.add_argument(f'--{k}', type=int, default=v)
    args = p.parse_args(); rows = []
    for seed in range(args.seeds):
        model,_,_,test,_ = glyph_problem('middling', seed, args)
        rows += caught('glyphs', seed, model, test)
    for seed in range(args.folder_seeds if args.folder else 0):
        model,_,_,test,_ = folder_problem(seed, Namespace(**{**vars(args),'data':args.folder}))
        rows += caught('folder', seed, model, test)
    df = pd.DataFrame(rows); write('criteria', df)
    print(df[df.budget.isin([.05,.1,.2,.3,.5])].groupby(['data','criterion','budget'])[['wrong','mendable']].mean().unstack('budget').round(3).to_string())


if __name__ == '__main__': main()
