"""One training step of all layers at batches of 64: what fused SGD, channels-last, bfloat16 and several tasks in one step would bring. In turns, medians.

    python benchmarks/step.py
"""
import argparse, copy, time

import pandas as pd
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, replace_all_batch_norm_modules_, stack_module_state, vmap

from closed_loop.data.glyphs import GlyphNet
from common import SmallResNet, write


def plain(model, x, y, last=False, dtype=None, **how):
    "A function that makes one step"
    model = copy.deepcopy(model).train()
    if last: model,x = model.to(memory_format=torch.channels_last),x.to(memory_format=torch.channels_last)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=.9, weight_decay=1e-4, **how)
    def step():
        with torch.autocast('cpu', dtype or torch.bfloat16, enabled=dtype is not None): loss = F.cross_entropy(model(x).float(), y)
        loss.backward(); opt.step(); opt.zero_grad()
    return step


def several(model, x, y, n):
    "A function that makes one step of `n` copies at once, each with its own images"
    models = [replace_all_batch_norm_modules_(copy.deepcopy(model).train()) for _ in range(n)]
    params,buffers = stack_module_state(models)
    base,moms = models[0].to('meta'),{k:torch.zeros_like(v) for k,v in params.items()}
    xs,ys = x[None].repeat(n,1,1,1,1),y[None].repeat(n,1)
    grads = vmap(grad(lambda p, b, x, y: F.cross_entropy(functional_call(base,(p,b),(x,)), y)))
    @torch.no_grad()
    def step():
        for k,g in grads(params, buffers, xs, ys).items():
            moms[k].mul_(.9).add_(g); params[k] = params[k]-1e-3*moms[k]
    return step


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for k,v in dict(bs=64, rounds=15, steps=8).items(): p.add_argument(f'--{k}', type=int, default=v)
    args = p.parse_args(); torch.set_num_threads(1); torch.manual_seed(0)
    nets = {'glyphs, width 8':(GlyphNet(160,8),1), 'glyphs, width 16':(GlyphNet(160,16),1), 'small ResNet, width 16, 32 pixels':(SmallResNet(60,16),3)}
    rows = []
    for name,(model,ch) in nets.items():
        x,y = torch.randn(args.bs,ch,32,32),torch.randint(60,(args.bs,))
        ways = {'plain':plain(model,x,y), 'fused SGD':plain(model,x,y,fused=True), 'channels-last':plain(model,x,y,True), 'channels-last, fused SGD':plain(model,x,y,True,fused=True),
                'bfloat16':plain(model,x,y,dtype=torch.bfloat16), 'bfloat16, channels-last':plain(model,x,y,True,torch.bfloat16), '4 copies in one step':several(model,x,y,4)}
        took = {k:[] for k in ways}
        for i in range(args.rounds+1):
            for k,f in ways.items():
                t = time.perf_counter()
                for _ in range(args.steps): f()
                if i: took[k].append((time.perf_counter()-t)/args.steps/(4 if k.startswith('4') else 1))
        ref = pd.Series(took['plain'])
        for k,v in took.items():
            r = ref/pd.Series(v); rows.append(dict(network=name, way=k, ms=1000*pd.Series(v).median(), times_faster=r.median(), lowest=r.min(), highest=r.max()))
    df = pd.DataFrame(rows); write('step', df); print(df.round(2).to_string())


if __name__ == '__main__': main()
