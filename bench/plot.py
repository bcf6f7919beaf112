"""Lines over numbers as an SVG, and the tables under them: what bench/ladder.py and its sisters share."""
import html

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 440, 70, 190, 40, 50
COLOURS = ["#1f5fa8", "#c0392b", "#2e8b57", "#8e44ad", "#b9770e", "#555555"]


def read_tsv(path):
    """Rows as dicts; lines that begin with # are comments."""
    lines = [line.rstrip("\n") for line in open(path) if line.strip() and not line.startswith("#")]
    names = lines[0].split("\t")
    return [dict(zip(names, line.split("\t"))) for line in lines[1:]]


def write_tsv(path, columns, rows, comment=""):
    with open(path, "w") as f:
        for line in comment.splitlines():
            f.write(f"# {line}\n")
        f.write("\t".join(columns) + "\n")
        for row in rows:
            f.write("\t".join(str(row[c]) for c in columns) + "\n")


def series(rows, x, y, name):
    """(name, points), the points of rows that have both columns."""
    points = [(float(r[x]), float(r[y])) for r in rows if r.get(x) not in (None, "") and r.get(y) not in (None, "")]
    return name, sorted(points)


def ticks(low, high, n=6):
    span = high - low or 1
    step = next(s for s in (m * 10.0 ** e for e in range(-9, 13) for m in (1, 2, 5)) if span / s <= n)
    first = int(low / step) * step
    return [t for t in (first + i * step for i in range(n + 3)) if low - step * 1e-9 <= t <= high + step * 1e-9]


def write_svg(path, title, x_label, y_label, all_series):
    """One polyline with dots for each (name, points); y begins at 0."""
    all_series = [s for s in all_series if s[1]]
    xs = [x for _, points in all_series for x, _ in points]
    ys = [y for _, points in all_series for _, y in points]
    x_low, x_high, y_high = min(xs), max(xs), max(ys) * 1.08 or 1
    x_high = x_high if x_high > x_low else x_low + 1

    def at(x, y):
        return (LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT),
                HEIGHT - BOTTOM - y / y_high * (HEIGHT - TOP - BOTTOM))

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{LEFT}" y="22" font-size="15">{html.escape(title)}</text>']
    for t in ticks(x_low, x_high):
        px, py = at(t, 0)
        out.append(f'<line x1="{px:.1f}" y1="{py:.1f}" x2="{px:.1f}" y2="{TOP}" stroke="#eeeeee"/>'
                   f'<text x="{px:.1f}" y="{py + 16:.1f}" text-anchor="middle">{t:g}</text>')
    for t in ticks(0, y_high):
        px, py = at(x_low, t)
        out.append(f'<line x1="{LEFT}" y1="{py:.1f}" x2="{WIDTH - RIGHT}" y2="{py:.1f}" stroke="#eeeeee"/>'
                   f'<text x="{LEFT - 6}" y="{py + 4:.1f}" text-anchor="end">{t:g}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">{html.escape(x_label)}</text>')
    out.append(f'<text transform="translate(18 {(HEIGHT + TOP - BOTTOM) / 2:.0f}) rotate(-90)" text-anchor="middle">'
               f'{html.escape(y_label)}</text>')
    for i, (name, points) in enumerate(all_series):
        colour, placed = COLOURS[i % len(COLOURS)], [at(*p) for p in points]
        out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="'
                   + " ".join(f"{x:.1f},{y:.1f}" for x, y in placed) + '"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in placed]
        out.append(f'<rect x="{WIDTH - RIGHT + 12}" y="{TOP + 18 * i}" width="10" height="10" fill="{colour}"/>'
                   f'<text x="{WIDTH - RIGHT + 27}" y="{TOP + 9 + 18 * i}">{html.escape(name)}</text>')
    with open(path, "w") as f:
        f.write("\n".join(out) + "\n</svg>\n")


def write_bars(path, title, unit, bars):
    """A horizontal bar for each (name, value)."""
    height, longest = TOP + 30 * len(bars) + 20, max(v for _, v in bars) or 1
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="20" y="22" font-size="15">{html.escape(title)}</text>']
    for i, (name, value) in enumerate(bars):
        y, width = TOP + 30 * i, value / longest * (WIDTH - 320)
        out.append(f'<text x="20" y="{y + 15}">{html.escape(name)}</text>'
                   f'<rect x="150" y="{y}" width="{width:.1f}" height="20" fill="{COLOURS[i % len(COLOURS)]}"/>'
                   f'<text x="{156 + width:.1f}" y="{y + 15}">{value:.4g} {html.escape(unit)}</text>')
    with open(path, "w") as f:
        f.write("\n".join(out) + "\n</svg>\n")
