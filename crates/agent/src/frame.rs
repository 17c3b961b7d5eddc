//! Frames on a byte stream: length (32 bits, big-endian), then JSON.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest frame, bytes. A trial's part with all its histograms and series stays far below.
pub const MAX_FRAME: usize = 64 << 20;

/// Writes one frame and flushes.
///
/// # Errors
/// Those of the stream, and `InvalidData` for a message above [`MAX_FRAME`].
pub fn write(mut stream: impl Write, message: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).ok().filter(|n| *n as usize <= MAX_FRAME);
    let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "message too long"))?;
    // One write, so that frames of several threads behind one lock cannot interleave with a partial header.
    let mut frame = Vec::with_capacity(body.len() + 4);
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&body);
    stream.write_all(&frame)?;
    stream.flush()
}

/// Reads one frame; `None` at the end of the stream between frames.
///
/// # Errors
/// Those of the stream; `UnexpectedEof` within a frame; `InvalidData` for a length above [`MAX_FRAME`] or a body that is
/// not the expected message.
pub fn read<T: DeserializeOwned>(mut stream: impl Read) -> io::Result<Option<T>> {
    let mut header = [0u8; 4];
    let mut have = 0;
    while have < header.len() {
        match stream.read(&mut header[have..]) {
            Ok(0) if have == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let length = u32::from_be_bytes(header) as usize;
    if length > MAX_FRAME {
        let what = format!("a frame of {length} bytes; at most {MAX_FRAME} are valid");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    // Grown while it arrives: a length alone must not allocate.
    let mut body = Vec::new();
    stream.take(length as u64).read_to_end(&mut body)?;
    if body.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    // From a `str` as everywhere: serde has code of its own for each type and each source.
    let text = str::from_utf8(&body).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    serde_json::from_str(text).map(Some).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_in_order() {
        let mut bytes = Vec::new();
        write(&mut bytes, &"one").unwrap();
        write(&mut bytes, &vec![2, 3]).unwrap();
        let mut stream = &bytes[..];
        assert_eq!(read::<String>(&mut stream).unwrap().as_deref(), Some("one"));
        assert_eq!(read::<Vec<u8>>(&mut stream).unwrap(), Some(vec![2, 3]));
        assert_eq!(read::<String>(&mut stream).unwrap(), None);
    }

    #[test]
    fn half_a_frame_garbage_and_absurd_lengths_are_errors() {
        let kind = |bytes: &[u8]| read::<String>(bytes).unwrap_err().kind();
        assert_eq!(kind(&[0, 0]), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(&[0, 0, 0, 9, b'"']), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(&[0xff, 0xff, 0xff, 0xff]), io::ErrorKind::InvalidData);
        assert_eq!(kind(&[0, 0, 0, 2, b'{', b'x']), io::ErrorKind::InvalidData);
    }
}
