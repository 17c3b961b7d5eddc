//! Figures for people, with delays that perhaps were not seen.

use weir_stats::Censored;
pub use weir_text::units::*;

/// A delay that perhaps was not seen: `52.1 µs`, `> 3 s` where it is only known from below, `failed` where it has no end.
pub fn delay(value: Censored) -> String {
    delay_in(value, display_for(Unit::Ns, value.value))
}

/// [`delay`] in a given display.
pub fn delay_in(value: Censored, display: Display) -> String {
    if value.value.is_infinite() {
        return FAILED.to_owned();
    }
    let sign = if value.known { "" } else { "> " };
    format!("{sign}{}", in_display(Unit::Ns, value.value, None, display))
}
