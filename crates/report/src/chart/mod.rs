//! Figures as SVG. Colours come from the page's style sheet by class, so that they follow light and dark. Variants differ by
//! marker and dash as well as by colour.

pub(crate) mod axis;
pub(crate) mod boxes;
pub(crate) mod curve;
pub(crate) mod ecdf;
pub(crate) mod flame;
pub(crate) mod forest;
pub(crate) mod latency;
pub(crate) mod lines;
pub(crate) mod rounds;
pub(crate) mod time;

use crate::chart::axis::Axis;
use crate::markup::{Markup, px};

/// Estimated width of one character of the figures' text (11 px, system font).
pub(crate) const CHAR: f64 = 6.2;

/// Colours and markers repeat after this many variants.
pub(crate) const STYLES: usize = 12;

/// The inner rectangle of a figure, in which data is drawn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Area {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

impl Area {
    pub(crate) fn x(&self, axis: &Axis, value: f64) -> f64 {
        self.left + self.width * axis.position(value)
    }

    pub(crate) fn y(&self, axis: &Axis, value: f64) -> f64 {
        self.top + self.height * (1.0 - axis.position(value))
    }

    pub(crate) fn bottom(&self) -> f64 {
        self.top + self.height
    }

    pub(crate) fn right(&self) -> f64 {
        self.left + self.width
    }
}

/// Begin an `svg` with title and description for those who cannot see it. `id` must be unique in the page.
pub(crate) fn begin(out: &mut Markup, id: &str, (width, height): (f64, f64), title: &str, desc: &str) {
    let title_id = format!("{id}-t");
    let desc_id = format!("{id}-d");
    let (w, h) = (px(width), px(height));
    out.open(
        "svg",
        &[
            ("viewBox", &format!("0 0 {w} {h}")),
            ("width", &w),
            ("height", &h),
            ("role", "img"),
            ("aria-labelledby", &format!("{title_id} {desc_id}")),
        ],
    );
    out.leaf("title", &[("id", &title_id)], title);
    out.leaf("desc", &[("id", &desc_id)], desc);
}

/// Text at a place; `class` chooses size and colour, `anchor` is `start`, `middle` or `end`.
pub(crate) fn label(out: &mut Markup, (x, y): (f64, f64), anchor: &str, class: &str, text: &str) {
    out.leaf("text", &[("x", &px(x)), ("y", &px(y)), ("text-anchor", anchor), ("class", class)], text);
}

pub(crate) fn line(out: &mut Markup, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let ends = [("x1", px(x1)), ("y1", px(y1)), ("x2", px(x2)), ("y2", px(y2))];
    let mut attributes = vec![("class", class)];
    attributes.extend(ends.iter().map(|(name, value)| (*name, value.as_str())));
    out.empty("line", &attributes);
}

pub(crate) fn rect(out: &mut Markup, class: &str, x: f64, y: f64, width: f64, height: f64) {
    let sizes = [("x", px(x)), ("y", px(y)), ("width", px(width.max(0.0))), ("height", px(height.max(0.0)))];
    let mut attributes = vec![("class", class)];
    attributes.extend(sizes.iter().map(|(name, value)| (*name, value.as_str())));
    out.empty("rect", &attributes);
}

pub(crate) fn path(out: &mut Markup, class: &str, d: &str) {
    out.empty("path", &[("class", class), ("d", d)]);
}

/// An open line through points.
pub(crate) fn line_path(points: impl Iterator<Item = (f64, f64)>) -> String {
    let mut d = String::new();
    for (i, (x, y)) in points.enumerate() {
        d.push(if i == 0 { 'M' } else { 'L' });
        d.push_str(&px(x));
        d.push(' ');
        d.push_str(&px(y));
    }
    d
}

/// Corners of a plus.
const PLUS: [(f64, f64); 12] = [
    (-0.4, -1.3),
    (0.4, -1.3),
    (0.4, -0.4),
    (1.3, -0.4),
    (1.3, 0.4),
    (0.4, 0.4),
    (0.4, 1.3),
    (-0.4, 1.3),
    (-0.4, 0.4),
    (-1.3, 0.4),
    (-1.3, -0.4),
    (-0.4, -0.4),
];

/// The marker of a variant around a point: twelve shapes.
pub(crate) fn marker(style: usize, x: f64, y: f64, r: f64) -> String {
    let p = |dx: f64, dy: f64| format!("{} {}", px(x + dx * r), px(y + dy * r));
    let polygon = |corners: &[(f64, f64)]| {
        let mut d = String::new();
        for (i, (dx, dy)) in corners.iter().enumerate() {
            d.push(if i == 0 { 'M' } else { 'L' });
            d.push_str(&p(*dx, *dy));
        }
        d.push('Z');
        d
    };
    match style % STYLES {
        0 => format!("M{}a{r} {r} 0 1 0 {} 0a{r} {r} 0 1 0 {} 0Z", p(-1.0, 0.0), px(2.0 * r), px(-2.0 * r)),
        1 => polygon(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),
        2 => polygon(&[(0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)]),
        3 => polygon(&[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)]),
        4 => polygon(&[(0.0, 1.2), (1.1, -0.8), (-1.1, -0.8)]),
        5 => polygon(&[(-1.2, 0.0), (0.8, -1.1), (0.8, 1.1)]),
        6 => polygon(&[(1.2, 0.0), (-0.8, -1.1), (-0.8, 1.1)]),
        7 => polygon(&[
            (-0.4, -1.2),
            (0.4, -1.2),
            (1.2, -0.4),
            (1.2, 0.4),
            (0.4, 1.2),
            (-0.4, 1.2),
            (-1.2, 0.4),
            (-1.2, -0.4),
        ]),
        // A plus, a cross, an hourglass lying and standing.
        8 => polygon(&PLUS),
        9 => polygon(&PLUS.map(|(x, y)| (0.71 * (x - y), 0.71 * (x + y)))),
        10 => polygon(&[(-1.2, -1.0), (1.2, 1.0), (1.2, -1.0), (-1.2, 1.0)]),
        _ => polygon(&[(-1.0, -1.2), (1.0, -1.2), (-1.0, 1.2), (1.0, 1.2)]),
    }
}

/// A legend of variants in rows that fit `width`; returns the y below it.
pub(crate) fn legend(out: &mut Markup, names: &[(usize, String)], left: f64, top: f64, width: f64) -> f64 {
    let (mut x, mut y) = (left, top);
    for (style, name) in names {
        let name = weir_text::layout::ellipsis(name, 40);
        let needed = 34.0 + name.chars().count() as f64 * CHAR + 16.0;
        if x + needed > left + width && x > left {
            x = left;
            y += 17.0;
        }
        let class = format!("curve v{}", style % STYLES);
        line(out, &class, (x, y), (x + 26.0, y));
        path(out, &format!("mark v{}", style % STYLES), &marker(*style, x + 13.0, y, 3.5));
        label(out, (x + 32.0, y + 4.0), "start", "tick", &name);
        x += needed;
    }
    y + 14.0
}

/// Vertical grid lines with their labels under the area.
pub(crate) fn grid_x(out: &mut Markup, area: &Area, axis: &Axis, ticks: &[(f64, String)]) {
    for (value, text) in ticks {
        let x = area.x(axis, *value);
        line(out, "grid", (x, area.top), (x, area.bottom()));
        label(out, (x, area.bottom() + 14.0), "middle", "tick", text);
    }
}

/// Horizontal grid lines with their labels left of the area.
pub(crate) fn grid_y(out: &mut Markup, area: &Area, axis: &Axis, ticks: &[(f64, String)]) {
    for (value, text) in ticks {
        let y = area.y(axis, *value);
        line(out, "grid", (area.left, y), (area.right(), y));
        label(out, (area.left - 6.0, y + 4.0), "end", "tick", text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without colour, marker and dash tell variants apart; the style sheet knows every style, in each of its themes.
    #[test]
    fn styles_are_distinct() {
        let css = include_str!("../html/style.css");
        let mut markers = std::collections::BTreeSet::new();
        for style in 0..STYLES {
            assert!(markers.insert(marker(style, 0.0, 0.0, 10.0)), "marker {style}");
            assert!(css.contains(&format!(".v{style}{{--c:var(--c{style});")), "class {style}");
            assert_eq!(css.matches(&format!("--c{style}:#")).count(), 3, "light, dark and print: {style}");
        }
    }
}
