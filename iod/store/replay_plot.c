/* The table as a picture: hits over the number of slots, whose axis is logarithmic. */
#include <inttypes.h>
#include <math.h>

#include "iod/store/replay_table.h"

enum { WIDTH = 720, HEIGHT = 440, LEFT = 60, RIGHT = 20, TOP = 30, BOTTOM = 50 };

static const struct {
	const char *name, *color;
} lines[IOD_REPLAY_ROWS] = {
	[IOD_REPLAY_LRU] = { "lru", "#c04040" },
	[IOD_REPLAY_DEFAULT] = { "default", "#2060c0" },
	[IOD_REPLAY_BELADY] = { "belady", "#404040" },
	[IOD_REPLAY_PINNED] = { "pin+lru", "#a0a0a0" },
};

static double x_of(const struct iod_replay_table *t, uint32_t slots)
{
	uint32_t least = slots, most = slots;

	for (size_t i = 0; i < t->n; i++) {
		least = t->slots[i] < least ? t->slots[i] : least;
		most = t->slots[i] > most ? t->slots[i] : most;
	}
	if (least == most)
		return LEFT;
	return LEFT + (WIDTH - LEFT - RIGHT) * (log(slots) - log(least)) / (log(most) - log(least));
}

static double y_of(double rate)
{
	return HEIGHT - BOTTOM - rate * (HEIGHT - TOP - BOTTOM);
}

static void draw_axes(const struct iod_replay_table *t, FILE *out)
{
	for (int i = 0; i <= 10; i += 2)
		(void)fprintf(out,
			      "<path d=\"M%d %.1fH%d\" stroke=\"#dddddd\"/><text x=\"%d\" "
			      "y=\"%.1f\" text-anchor=\"end\">%d %%</text>\n",
			      LEFT, y_of(i / 10.0), WIDTH - RIGHT, LEFT - 6, y_of(i / 10.0) + 4,
			      i * 10);
	for (size_t i = 0; i < t->n; i++)
		(void)fprintf(out,
			      "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%" PRIu32
			      "</text>\n",
			      x_of(t, t->slots[i]), HEIGHT - BOTTOM + 18, t->slots[i]);
	(void)fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">slots</text>\n",
		      (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10);
}

static void draw_line(const struct iod_replay_table *t, int row, FILE *out)
{
	(void)fprintf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"",
		      lines[row].color);
	for (size_t i = 0; i < t->n; i++)
		(void)fprintf(out, "%s%.1f,%.1f", i ? " " : "", x_of(t, t->slots[i]),
			      y_of(iod_replay_rate(&t->found[row][i])));
	(void)fprintf(out, "\"/>\n<text x=\"%d\" y=\"%d\" fill=\"%s\">%s</text>\n",
		      LEFT + 12 + 90 * row, TOP - 12, lines[row].color, lines[row].name);
}

void iod_replay_plot(const struct iod_replay_table *t, FILE *out)
{
	(void)fprintf(out,
		      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
		      "font-family=\"sans-serif\" font-size=\"12\">\n"
		      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
		      WIDTH, HEIGHT);
	draw_axes(t, out);
	for (int k = 0; k < IOD_REPLAY_ROWS; k++)
		draw_line(t, k, out);
	(void)fputs("</svg>\n", out);
}
