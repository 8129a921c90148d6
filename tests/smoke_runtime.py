"A tiny closed loop on tensors, for any supported fastai and fastcore, without the development tools"
import torch
from torch import nn
from torch.utils.data import TensorDataset

from closed_loop.core import cli_predict


def main():
    torch.manual_seed(0)
    y = torch.arange(300) % 6
    x = torch.randn(300, 3, 8, 8)
    x[:, 0] += .4*y[:, None, None]
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 6))
    before = {k: v.clone() for k, v in net.state_dict().items()}
    res = cli_predict(net, TensorDataset(x, y), TensorDataset(x[:60], y[:60]), calib=TensorDataset(x[60:120], y[60:120]), eps=.9, K=3, Q=4, epochs=1, device='cpu', progress=False)
    assert len(res.hard) and res.second.isfinite().all()
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    print(res)


if __name__ == '__main__': main()
