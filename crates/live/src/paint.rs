//! The parts of all pictures: lines, styles, figures and bars.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};
use weir_text::layout::ellipsis;
use weir_text::units::{self, Unit};

/// A line of a page.
pub(crate) struct Text {
    pub(crate) text: String,
    pub(crate) style: Style,
}

impl Text {
    pub(crate) fn plain(text: impl Into<String>) -> Self {
        Text { text: text.into(), style: Style::new() }
    }

    pub(crate) fn title(text: impl Into<String>) -> Self {
        Text { text: text.into(), style: bold() }
    }
}

pub(crate) fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

pub(crate) fn faint() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

pub(crate) fn warning() -> Style {
    Style::new().fg(Color::Yellow)
}

pub(crate) fn bad() -> Style {
    Style::new().fg(Color::Red)
}

pub(crate) fn rate(bps: f64) -> String {
    units::quantity(Unit::Bps, bps, None)
}

pub(crate) fn time(ns: u64) -> String {
    units::quantity(Unit::Ns, ns as f64, None)
}

/// Writes a line from a column on, cut at the right edge of the area.
pub(crate) fn put(buffer: &mut Buffer, area: Rect, (x, y): (u16, u16), text: &str, style: Style) {
    if x < area.right() && y < area.bottom() {
        let room = usize::from(area.right() - x);
        buffer.set_stringn(x, y, ellipsis(text, room), room, style);
    }
}

/// Values as bars of eight heights, the greatest one full; zero is blank. The latest values are to the right.
pub(crate) fn sparkline(values: impl DoubleEndedIterator<Item = f64>, width: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let mut shown: Vec<f64> = values.rev().take(width).collect();
    shown.reverse();
    let most = shown.iter().copied().fold(0.0, f64::max);
    let bar = |value: &f64| match (value / most * 8.0).ceil() {
        height if height >= 1.0 => BARS[(height as usize).min(8) - 1],
        _ => ' ',
    };
    let bars: String = shown.iter().map(bar).collect();
    format!("{}{bars}", " ".repeat(width - shown.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_scaled_by_the_greatest_and_the_latest_is_to_the_right() {
        let line = |values: &[f64], width| sparkline(values.iter().copied(), width);
        assert_eq!(line(&[0.0, 1.0, 4.0, 8.0], 6), "   ▁▄█");
        assert_eq!(line(&[8.0, 1.0, 2.0], 2), "▄█");
        assert_eq!(line(&[0.0, 0.0], 3), "   ");
        assert_eq!(line(&[], 2), "  ");
        assert_eq!(line(&[f64::NAN, 1e-9], 2), " █");
    }
}
