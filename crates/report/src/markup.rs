//! A writer of HTML and SVG that cannot produce an unescaped or unclosed thing.
//!
//! The output is well-formed XML as well (every element closed, every attribute quoted), so that any XML
//! parser can check it.

use crate::escape::xml;

/// Markup under construction.
#[derive(Debug, Default)]
pub(crate) struct Markup {
    out: String,
    open: Vec<&'static str>,
}

impl Markup {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Begin an element; [`Markup::close`] ends it.
    pub(crate) fn open(&mut self, tag: &'static str, attributes: &[(&str, &str)]) -> &mut Self {
        self.tag(tag, attributes);
        self.out.push('>');
        self.open.push(tag);
        self
    }

    /// End the innermost element.
    pub(crate) fn close(&mut self) -> &mut Self {
        if let Some(tag) = self.open.pop() {
            self.out.push_str("</");
            self.out.push_str(tag);
            self.out.push('>');
            // Lines keep the file readable; only where white space means nothing.
            if matches!(
                tag,
                "p" | "tr" | "table" | "section" | "svg" | "li" | "g" | "figure" | "h2" | "h3" | "head"
            ) {
                self.out.push('\n');
            }
        }
        self
    }

    /// Text, escaped.
    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        self.out.push_str(&xml(text));
        self
    }

    /// An element with nothing but text in it.
    pub(crate) fn leaf(&mut self, tag: &'static str, attributes: &[(&str, &str)], text: &str) -> &mut Self {
        self.open(tag, attributes).text(text).close()
    }

    /// A paragraph in smaller letters.
    pub(crate) fn note(&mut self, text: &str) -> &mut Self {
        self.leaf("p", &[("class", "note")], text)
    }

    /// The words under a figure.
    pub(crate) fn caption(&mut self, text: &str) -> &mut Self {
        self.leaf("figcaption", &[], text)
    }

    /// An element without content.
    pub(crate) fn empty(&mut self, tag: &'static str, attributes: &[(&str, &str)]) -> &mut Self {
        self.tag(tag, attributes);
        self.out.push_str("/>");
        self
    }

    /// Text of our own that must not be escaped: the document type and the style sheet.
    pub(crate) fn verbatim(&mut self, text: &'static str) -> &mut Self {
        self.out.push_str(text);
        self
    }

    /// Put finished markup in.
    pub(crate) fn append(&mut self, other: Markup) {
        self.out.push_str(&other.finish());
    }

    /// Everything, with what is still open closed.
    pub(crate) fn finish(mut self) -> String {
        while !self.open.is_empty() {
            self.close();
        }
        self.out
    }

    fn tag(&mut self, tag: &str, attributes: &[(&str, &str)]) {
        self.out.push('<');
        self.out.push_str(tag);
        for (name, value) in attributes {
            self.out.push(' ');
            self.out.push_str(name);
            self.out.push_str("=\"");
            self.out.push_str(&xml(value));
            self.out.push('"');
        }
    }
}

/// A coordinate: a tenth of a unit is finer than any screen shows.
pub(crate) fn px(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}
