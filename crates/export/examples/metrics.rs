//! Print `docs/reference/metrics.md`: `scripts/docs` runs it.

fn main() {
    print!("{}", weir_export::reference());
}
