"The picture of the front page, nbs/images/idea-*.svg, from tools/idea.json: one image that a network looked at twice."
import json, zlib
from base64 import b64decode, b64encode
from pathlib import Path

from fastcore.script import call_parse

ROOT = Path(__file__).resolve().parent.parent
DATA, OUT, LEVELS, SIDE = Path(__file__).with_suffix('.json'), ROOT/'nbs/images', 8, 28
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
LIGHT = dict(ink='#1f2328', soft='#59636e', card='#f6f8fa', edge='#d1d9e0', bar='#8c959f',
             wrong='#bc4c00', right='#1a7f37', learn='#0969da')
DARK = dict(ink='#f0f6fc', soft='#9da7b1', card='#161b22', edge='#3d444d', bar='#6e7681',
            wrong='#f0883e', right='#3fb950', learn='#4493f8')
ALT = ('A network hesitates between two look-alike characters at its first look, is fine-tuned for a moment on '
       'training images of the classes it hesitates between, gives the right answer at its second look, '
       'and gets its old weights back')


def pack(x):
    "A grey image in few levels, as text"
    return b64encode(zlib.compress(bytes(round(v/255*(LEVELS-1)) for v in x.flatten().tolist()), 9)).decode()


def unpack(s): return zlib.decompress(b64decode(s))


def measure(idx=277, classes='+X×', n=3):
    "Look twice at glyphs of seed 0; keep test image `idx`, both answers, and `n` training images of each of `classes`"
    from closed_loop.core import cli_predict
    from closed_loop.data.glyphs import glyph_aug, glyph_model, glyphs
    train, test = glyphs(400, transform=glyph_aug()), glyphs(12, 'test')
    res = cli_predict(glyph_model(), train, test, Q=8, cover=None, generalist=0, seed=0, device='cpu', progress=False)
    ids = [test.classes.index(c) for c in classes]
    task = next(o for o in res.plan if idx in o.members)
    assert set(ids) <= set(task.classes), f'not all of {classes} are in the task'
    second = res.second[res.hard.tolist().index(idx)].clone()
    second[[c for c in range(len(second)) if c not in task.classes]] = -float('inf')   # it knows those of its task
    two = dict(first=res.first[idx], second=second)
    probs = {k: [round(v, 3) for v in z.softmax(0)[ids].tolist()] for k, z in two.items()}
    images = [[pack(train.x[train.targets == i][j]) for j in range(n)] for i in ids]
    truth, f = test.classes[test.targets[idx]], res.flips()
    run = dict(N=f.N, F2T=f.F2T, T2F=f.T2F)
    return dict(**run, classes=list(classes), truth=truth, **probs, image=pack(test.x[idx]), train=images)


def pixels(name, s):
    "A grey image as an SVG symbol: a ground, and for each other level the runs of its pixels"
    x = unpack(s)
    ground, runs = max(set(x), key=x.count), {}
    for r in range(SIDE):
        row, c = x[r*SIDE:(r+1)*SIDE], 0
        while c < SIDE:
            e = c
            while e < SIDE and row[e] == row[c]: e += 1
            if row[c] != ground: runs.setdefault(row[c], []).append(f'M{c} {r}h{e-c}v1h-{e-c}z')
            c = e
    grey = lambda v: '#'+f'{round(v/(LEVELS-1)*255):02x}'*3
    paths = ''.join(f'<path fill="{grey(v)}" d="{"".join(p)}"/>' for v, p in sorted(runs.items()))
    whole = f'<path fill="{grey(ground)}" d="M0 0h{SIDE}v{SIDE}H0z"/>'
    drawn = f'<g shape-rendering="crispEdges">{whole}{paths}</g>'
    return f'<symbol id="{name}" viewBox="0 0 {SIDE} {SIDE}">{drawn}</symbol>'


def text(x, y, s, fill, size=22, anchor='start', weight=400):
    how = f'fill="{fill}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x}" y="{y}" {how}>{s}</text>'


def image(name, x, y, side, edge, width=2):
    where = f'x="{x}" y="{y}" width="{side}" height="{side}"'
    return f'<use href="#{name}" {where}/><rect {where} fill="none" stroke="{edge}" stroke-width="{width}"/>'


def arrow(d, tip, turn, c):
    "A line with a head at `tip`"
    return (f'<path d="{d}" fill="none" stroke="{c}" stroke-width="4" stroke-linecap="round"/>'
            f'<path d="M0 0L-15 -9L-15 9z" fill="{c}" transform="translate({tip}) rotate({turn})"/>')


def tick(x, y, c):
    return (f'<path d="M{x} {y}l18 20l36 -46" fill="none" stroke="{c}" stroke-width="11" stroke-linecap="round" '
            'stroke-linejoin="round"/>')


def numbered(n, s, p): return f'<tspan fill="{p["soft"]}">{n}</tspan> {s}'


W, TOP, CARD, H, GAP = 840, 84, 244, 262, 54


def card(k, head, sub, p):
    "Number `k+1` of the three, with its two headings"
    x = k*(CARD+GAP)
    box = f'<rect x="{x+1}" y="{TOP}" width="{CARD-2}" height="{H}" rx="14"'
    return (text(x+CARD/2, 28, numbered(k+1, head, p), p['ink'], 27, 'middle', 650)
            + text(x+CARD/2, 62, sub, p['soft'], 21, 'middle')
            + f'{box} fill="{p["card"]}" stroke="{p["edge"]}" stroke-width="2"/>')


def answer(x, d, probs, color, p):
    "The image and what the network says it is"
    out = [image('image', x+26, TOP+22, 108, color, 4)]
    for i, (c, v) in enumerate(zip(d['classes'], probs)):
        y, best = TOP+166+34*i, v == max(probs)
        say = dict(fill=p['ink'], weight=650) if best else dict(fill=p['soft'])
        long, round_by = max(4, round(112*v)), min(4, max(1, round(56*v)))
        bar = f'<rect x="{x+58}" y="{y-17}" width="{long}" height="18" rx="{round_by}"'
        out += [text(x+36, y, c, p['ink'], 25, 'middle', 650),
                text(x+CARD-20, y, f'{v:.0%}', size=21, anchor='end', **say),
                f'{bar} fill="{color if best else p["bar"]}"/>']
    return ''.join(out)


def specialist(x, d, p):
    "Training images, and a network whose deep layers learn from them"
    out = []
    for i, c in enumerate(d['classes']):
        y = TOP+18+58*i
        out.append(text(x+36, y+35, c, p['ink'], 25, 'middle', 650))
        out += [image(f't{i}{j}', x+62+56*j, y, 50, p['edge']) for j in range(len(d['train'][i]))]
    for i, h in enumerate((56, 46, 36, 26)):
        fill = p['learn'] if i > 1 else p['edge']
        out.append(f'<rect x="{x+26+19*i}" y="{TOP+223-h/2}" width="13" height="{h}" rx="3" fill="{fill}"/>')
    return ''.join(out) + text(x+111, TOP+230, 'fine-tuned', p['learn'], 22)


def draw(d, p):
    "The picture in the colours of palette `p`"
    xs, mid, end = [k*(CARD+GAP) for k in range(3)], TOP+H/2, TOP+H
    a, b = d['classes'][:2]
    parts = [card(0, 'First look', f'hesitates: {a} or {b}?', p), card(1, 'Specialist', 'studies look-alikes', p),
             card(2, 'Second look', f'sure, and right: {d["truth"]}', p), answer(xs[0], d, d['first'], p['wrong'], p),
             specialist(xs[1], d, p), answer(xs[2], d, d['second'], p['right'], p),
             text(xs[0]+182, TOP+102, '?', p['wrong'], 78, 'middle', 700), tick(xs[2]+156, TOP+80, p['right'])]
    for x in xs[1:]: parts.append(arrow(f'M{x-GAP+9} {mid}H{x-18}', f'{x-6} {mid}', 0, p['soft']))
    down, r = end+44, 18
    back = f'M{xs[2]+CARD/2} {end+10}V{down-r}q0 {r} {-r} {r}H{CARD/2+r}q{-r} 0 {-r} {-r}V{end+24}'
    parts.append(arrow(back, f'{CARD/2} {end+10}', -90, p['soft']))
    parts.append(text(W/2, down-14, numbered(4, 'Old weights back, next task', p), p['ink'], 24, 'middle', 650))
    learned = [pixels(f't{i}{j}', s) for i, row in enumerate(d['train']) for j, s in enumerate(row)]
    return '\n'.join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {down+20}" role="img" '
        f'aria-labelledby="title desc" font-family="{FONT}">',
        f'<title id="title">Closed-loop inference</title>\n<desc id="desc">{ALT}</desc>',
        f'<defs>{"".join([pixels("image", d["image"]), *learned])}</defs>', *parts, '</svg>\n'])


def build():
    "Both pictures: name to text"
    d = json.loads(DATA.read_text(encoding='utf-8'))
    return {f'idea-{k}.svg': draw(d, p) for k, p in dict(light=LIGHT, dark=DARK).items()}


@call_parse
def main(measure_again:bool=False): # Run the network again first: half a minute
    "Write nbs/images/idea-light.svg and idea-dark.svg"
    if measure_again: DATA.write_text(json.dumps(measure(), indent=1, ensure_ascii=False)+'\n', encoding='utf-8')
    OUT.mkdir(exist_ok=True)
    for name, svg in build().items(): (OUT/name).write_text(svg, encoding='utf-8')
