"What the benchmarks share: data in memory, small networks, and tables that say where they come from."
import hashlib, io, json, os, platform, sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset
from torchvision.models.resnet import BasicBlock

from closed_loop import __version__
from closed_loop.data.folders import FolderData
from closed_loop.data.glyphs import PadCrop, cache_dir
from closed_loop.safely import write_whole

RESULTS = Path(__file__).parent/'results'


class Pixels(Dataset):
    "Images of one size in memory, as bytes, normalised when asked for"
    def __init__(self, x, targets, classes, transform=None): self.x,self.targets,self.classes,self.transform = x,targets,classes,transform
    def __len__(self): return len(self.x)
    def batch(self, idxs):
        x = self.x[idxs].float().div_(127.5).sub_(1)
        return x if self.transform is None else self.transform(x), self.targets[idxs]
    def __getitem__(self, i): x,y = self.batch([i]); return x[0],int(y[0])
    def some(self, idxs): return Pixels(self.x[idxs], self.targets[idxs], self.classes, self.transform)


class CropFlip(PadCrop):
    "A random crop of the padded image, mirrored half of the time"
    def __call__(self, x):
        x = super().__call__(x)
        return torch.where(torch.rand(len(x),1,1,1)<.5, x.flip(-1), x)


def save_whole(what, f):
    "`torch.save` to a file that other benchmarks, which may run at the same time, see whole or not at all"
    b = io.BytesIO(); torch.save(what, b); f.parent.mkdir(parents=True, exist_ok=True)
    write_whole(f, b.getvalue())


def folder_key(folder):
    "A short name for a folder that no other folder has"
    f = Path(folder).resolve()
    return f'{f.name}-{hashlib.sha256(str(f).encode()).hexdigest()[:6]}'


def folder_pixels(folder, size):
    "`train` and `val` of an image folder at one size, decoded once and kept in the cache folder"
    f = cache_dir()/f'pixels-{folder_key(folder)}-{size}.pt'
    if not f.exists():
        def read(ds): return torch.from_numpy(np.stack([np.asarray(ds.loader(p).resize((size,size), Image.Resampling.BOX)) for p in ds.paths])).permute(0,3,1,2).contiguous()
        tr = FolderData(Path(folder)/'train'); va = FolderData(Path(folder)/'val', classes=tr.classes)
        save_whole(dict(x=read(tr), y=torch.tensor(tr.targets), xv=read(va), yv=torch.tensor(va.targets), classes=tr.classes), f)
    d = torch.load(f, weights_only=True)
    return Pixels(d['x'], d['y'], d['classes']), Pixels(d['xv'], d['yv'], d['classes'])


class SmallResNet(nn.Module):
    "A ResNet of one block a group with a stride-2 stem, for colour images of 32 pixels"
    def __init__(self, C, width=24):
        super().__init__()
        self.conv1,self.bn1,self.relu,i = nn.Conv2d(3,width,3,2,1,bias=False),nn.BatchNorm2d(width),nn.ReLU(inplace=True),width
        for k,(o,s) in enumerate([(width,1),(2*width,2),(4*width,2),(8*width,2)],1):
            skip = None if s==1 and i==o else nn.Sequential(nn.Conv2d(i,o,1,s,bias=False), nn.BatchNorm2d(o))
            setattr(self, f'layer{k}', nn.Sequential(BasicBlock(i,o,s,skip))); i = o
        self.avgpool,self.fc = nn.AdaptiveAvgPool2d(1),nn.Linear(i,C)
    def forward(self, x):
        x = self.layer4(self.layer3(self.layer2(self.layer1(self.relu(self.bn1(self.conv1(x)))))))
        return self.fc(self.avgpool(x).flatten(1))


def provenance(args=None):
    "The machine, the versions and the command"
    cpu = next((l.split(':')[1].strip() for l in open('/proc/cpuinfo') if l.startswith('model name')), platform.processor()) if os.path.exists('/proc/cpuinfo') else platform.processor()
    return dict(machine=f'{cpu}, {os.cpu_count()} vCPU', threads=torch.get_num_threads(), python=platform.python_version(), torch=torch.__version__,
                closed_loop=__version__, command=' '.join(['python', 'benchmarks/'+Path(sys.argv[0]).name, *(Path(a).name if '/' in a else a for a in sys.argv[1:])]))


def write(name, df, again=False):
    "A table as CSV, with its provenance beside it; one that goes on from a stored table names the commands that made that one"
    RESULTS.mkdir(parents=True, exist_ok=True)
    f,p = RESULTS/f'{name}.json',provenance()
    old = json.loads(f.read_text()) if again and f.exists() else {}
    earlier = [c for c in (*old.get('earlier',[]), old.get('command')) if c and c!=p['command']]
    df.to_csv(RESULTS/f'{name}.csv', index=False)
    f.write_text(json.dumps(p | ({'earlier':list(dict.fromkeys(earlier))} if earlier else {}), indent=1)+'\n')
