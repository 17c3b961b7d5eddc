//! Keys, from the bytes that a terminal sends (ECMA-48, and xterm's sequences for keys without a character).

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// A printable character.
    Char(char),
    /// Enter.
    Enter,
    /// Escape.
    Escape,
    /// Backspace.
    Backspace,
    /// Tab.
    Tab,
    /// Shift and Tab.
    BackTab,
    /// One line up.
    Up,
    /// One line down.
    Down,
    /// One page up.
    PageUp,
    /// One page down.
    PageDown,
    /// To the first line.
    Home,
    /// To the last line.
    End,
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-L.
    Redraw,
}

/// No sequence of a key is longer; a longer one is no key.
const LONGEST: usize = 32;

/// Bytes that came, until they are keys. Bytes that are no key are dropped.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    waiting: Vec<u8>,
}

/// The meaning of the first bytes.
enum Begins {
    /// A key, or nothing of interest, of so many bytes.
    With(Option<Key>, usize),
    /// The beginning of a sequence.
    Unfinished,
}

impl Keys {
    /// Adds bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.waiting.extend_from_slice(bytes);
    }

    /// Returns true if bytes wait for the rest of their sequence.
    pub(crate) fn is_unfinished(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the next key. `quiet` says that no more bytes have come for a while: then an unfinished sequence is complete, and a
    /// lone ESC is the key.
    pub(crate) fn next_key(&mut self, quiet: bool) -> Option<Key> {
        while !self.waiting.is_empty() {
            let (key, length) = match begins(&self.waiting) {
                Begins::With(key, length) => (key, length),
                Begins::Unfinished if !quiet => return None,
                Begins::Unfinished if self.waiting == [0x1b] => (Some(Key::Escape), 1),
                Begins::Unfinished => (None, self.waiting.len()),
            };
            self.waiting.drain(..length);
            if key.is_some() {
                return key;
            }
        }
        None
    }
}

fn begins(bytes: &[u8]) -> Begins {
    match bytes {
        [0x1b, rest @ ..] => escape(rest),
        [b'\r' | b'\n', ..] => Begins::With(Some(Key::Enter), 1),
        [b'\t', ..] => Begins::With(Some(Key::Tab), 1),
        [0x08 | 0x7f, ..] => Begins::With(Some(Key::Backspace), 1),
        [0x03, ..] => Begins::With(Some(Key::Interrupt), 1),
        [0x0c, ..] => Begins::With(Some(Key::Redraw), 1),
        _ => character(bytes),
    }
}

/// The bytes behind an ESC.
fn escape(rest: &[u8]) -> Begins {
    match rest {
        [] | [b'[' | b'O'] => Begins::Unfinished,
        // Enter of the keypad. Behind `[` it would be the mouse.
        [b'O', b'M', ..] => Begins::With(Some(Key::Enter), 3),
        [b'O', letter, ..] => Begins::With(by_letter(*letter), 3),
        [b'[', sequence @ ..] => {
            // Parameters and intermediates, then one final byte (ECMA-48, 5.4).
            let end = sequence.iter().take(LONGEST).position(|b| !(0x20..0x40).contains(b));
            match end {
                Some(end) if (0x40..0x7f).contains(&sequence[end]) => {
                    let key = match sequence[end] {
                        b'~' => by_number(&sequence[..end]),
                        letter => by_letter(letter),
                    };
                    Begins::With(key, end + 3)
                }
                // Another byte has no place here: the sequence is none, and the byte counts for itself.
                Some(end) => Begins::With(None, end + 2),
                None if sequence.len() >= LONGEST => Begins::With(None, LONGEST + 2),
                None => Begins::Unfinished,
            }
        }
        // Escape and a key soon after it, as a slow line brings them. A key together with Alt looks the same.
        _ => Begins::With(Some(Key::Escape), 1),
    }
}

fn by_letter(letter: u8) -> Option<Key> {
    Some(match letter {
        b'A' => Key::Up,
        b'B' => Key::Down,
        b'F' => Key::End,
        b'H' => Key::Home,
        b'Z' => Key::BackTab,
        _ => return None,
    })
}

fn by_number(parameters: &[u8]) -> Option<Key> {
    let number = parameters.split(|b| *b == b';').next()?;
    Some(match number {
        b"1" | b"7" => Key::Home,
        b"4" | b"8" => Key::End,
        b"5" => Key::PageUp,
        b"6" => Key::PageDown,
        _ => return None,
    })
}

/// A character in UTF-8. Others, and control characters, are no key.
fn character(bytes: &[u8]) -> Begins {
    let head = &bytes[..bytes.len().min(4)];
    let valid = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(e) if e.valid_up_to() == 0 => {
            return match e.error_len() {
                Some(length) => Begins::With(None, length),
                None => Begins::Unfinished,
            };
        }
        Err(e) => std::str::from_utf8(&head[..e.valid_up_to()]).unwrap_or_default(),
    };
    match valid.chars().next() {
        Some(c) => Begins::With((!c.is_control()).then_some(Key::Char(c)), c.len_utf8()),
        None => Begins::Unfinished,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys(bytes: &[u8]) -> Vec<Key> {
        let mut keys = Keys::default();
        keys.push(bytes);
        std::iter::from_fn(|| keys.next_key(true)).collect()
    }

    #[test]
    fn sequences_of_xterm_rxvt_and_the_console_are_keys() {
        assert_eq!(keys(b"\x1b[A\x1bOB\x1b[5~\x1b[6~"), [Key::Up, Key::Down, Key::PageUp, Key::PageDown]);
        assert_eq!(keys(b"\x1b[H\x1b[1~\x1b[7~\x1bOF\x1b[4~\x1b[8~")[..3], [Key::Home; 3]);
        assert_eq!(keys(b"\x1b[Z\t\r\x7f"), [Key::BackTab, Key::Tab, Key::Enter, Key::Backspace]);
        // With Ctrl, as xterm numbers it.
        assert_eq!(keys(b"\x1b[1;5A"), [Key::Up]);
        assert_eq!(keys("aé日".as_bytes()), ['a', 'é', '日'].map(Key::Char));
    }

    #[test]
    fn a_lone_escape_waits_until_it_is_quiet() {
        let mut keys = Keys::default();
        keys.push(b"\x1b");
        assert_eq!((keys.next_key(false), keys.is_unfinished()), (None, true));
        assert_eq!(keys.next_key(true), Some(Key::Escape));
        // A sequence in two pieces is one key.
        keys.push(b"\x1b[");
        assert_eq!(keys.next_key(false), None);
        keys.push(b"B");
        assert_eq!(keys.next_key(false), Some(Key::Down));
    }

    #[test]
    fn what_is_no_key_is_dropped_and_hides_nothing() {
        assert_eq!(keys(b"\x1b[31;1mq"), [Key::Char('q')]);
        assert_eq!(keys(b"\xff\xfe\x01q"), [Key::Char('q')]);
        assert_eq!(keys(b"\x1b[12\x03"), [Key::Interrupt]);
        assert_eq!(keys(&[b"\x1b[".as_slice(), &[b'1'; LONGEST], b"q"].concat()), [Key::Char('q')]);
        assert_eq!(keys(b"\x1b?\x1b\x1b[A"), [Key::Escape, Key::Char('?'), Key::Escape, Key::Up]);
    }

    proptest! {
        /// However the bytes are cut, the keys are the same, and no byte stays.
        #[test]
        fn any_bytes_come_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0_usize..200) {
            let whole = keys(&bytes);
            let mut parser = Keys::default();
            let (first, second) = bytes.split_at(cut.min(bytes.len()));
            let mut pieces = Vec::new();
            parser.push(first);
            pieces.extend(std::iter::from_fn(|| parser.next_key(false)));
            parser.push(second);
            pieces.extend(std::iter::from_fn(|| parser.next_key(false)));
            pieces.extend(std::iter::from_fn(|| parser.next_key(true)));
            prop_assert!(!parser.is_unfinished());
            prop_assert_eq!(pieces, whole);
        }
    }
}
