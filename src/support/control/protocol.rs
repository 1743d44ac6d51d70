//! The messages between `trtalloc ctl` and a process. None has more than 4 KiB.
//!
//! A client sends one [`Request`]: "trtalloc", the protocol's version, a zero, the length of the rest in two bytes, and
//! the command and its arguments as `key=value`, separated by zeros. The answer is a sequence of frames: a kind, a zero,
//! the length in two bytes, and so many bytes. Frames of data are followed by one that says how it ended.

use std::io::{Read, Write};

/// The maximum size of a message, in bytes.
pub const MAX_MESSAGE: usize = 4096;
const MAGIC: &[u8] = b"trtalloc";
const VERSION: u8 = 1;
/// The bytes before a request's text.
const REQUEST_HEADER: usize = MAGIC.len() + 4;
const FRAME_HEADER: usize = 4;
const MAX_PAYLOAD: usize = MAX_MESSAGE - FRAME_HEADER;
/// How much is sent at a time.
const BUFFER: usize = 1 << 16;

/// Data of the answer.
const DATA: u8 = b'd';
/// The answer is complete.
const END: u8 = b'z';
/// The command failed: its status, and the reason as text.
const FAILED: u8 = b'e';

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Request {
    /// The command's name.
    pub command: String,
    /// Its arguments.
    pub arguments: Vec<(String, String)>,
}

impl Request {
    /// A request without arguments.
    pub fn new(command: &str) -> Request {
        Request {
            command: command.into(),
            arguments: Vec::new(),
        }
    }

    /// With one more argument.
    pub fn with(mut self, key: &str, value: impl ToString) -> Request {
        self.arguments.push((key.into(), value.to_string()));
        self
    }

    /// The value of an argument.
    pub fn get(&self, key: &str) -> Option<&str> {
        let found = self.arguments.iter().find(|(known, _)| known == key);
        found.map(|(_, value)| value.as_str())
    }

    /// The message; none where it would be too long, or a text has a zero.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut text = self.command.clone();
        for (key, value) in &self.arguments {
            text.extend(["\0", key, "=", value]);
        }
        let zeros = text.bytes().filter(|byte| *byte == 0).count();
        if zeros != self.arguments.len() || REQUEST_HEADER + text.len() > MAX_MESSAGE {
            return None;
        }
        let mut message = MAGIC.to_vec();
        message.extend([VERSION, 0]);
        message.extend((text.len() as u16).to_le_bytes());
        message.extend(text.as_bytes());
        Some(message)
    }

    /// How many bytes of a message are still missing, as far as the bytes at hand show; an error where they are not the
    /// beginning of one.
    pub fn missing(bytes: &[u8]) -> Result<usize, &'static str> {
        let magic = &MAGIC[..bytes.len().min(MAGIC.len())];
        if !bytes.starts_with(magic) {
            return Err("not a request");
        }
        match bytes.get(MAGIC.len()) {
            Some(&VERSION) | None => {}
            Some(_) => return Err("the command `trtalloc` and the program's library have different versions"),
        }
        if bytes.get(MAGIC.len() + 1).is_some_and(|zero| *zero != 0) {
            return Err("not a request");
        }
        let Some(header) = bytes.get(..REQUEST_HEADER) else {
            return Ok(REQUEST_HEADER - bytes.len());
        };
        let length = usize::from(u16::from_le_bytes([
            header[REQUEST_HEADER - 2],
            header[REQUEST_HEADER - 1],
        ]));
        if REQUEST_HEADER + length > MAX_MESSAGE {
            return Err("the request is too long");
        }
        (REQUEST_HEADER + length)
            .checked_sub(bytes.len())
            .ok_or("something follows the request")
    }

    /// Reads a whole message.
    pub fn decode(bytes: &[u8]) -> Result<Request, &'static str> {
        if Request::missing(bytes)? != 0 {
            return Err("the request is not complete");
        }
        let text = std::str::from_utf8(&bytes[REQUEST_HEADER..]).map_err(|_| "the request is not UTF-8")?;
        let mut parts = text.split('\0');
        let mut request = Request::new(parts.next().unwrap_or_default());
        for part in parts {
            let (key, value) = part.split_once('=').ok_or("an argument is not key=value")?;
            if request.get(key).is_some() {
                return Err("an argument is given twice");
            }
            request = request.with(key, value);
        }
        Ok(request)
    }
}

/// Writes an answer as frames.
pub struct Answer<W: Write> {
    out: W,
    buffer: Vec<u8>,
}

impl<W: Write> Answer<W> {
    /// An empty answer.
    pub fn new(out: W) -> Answer<W> {
        Answer {
            out,
            buffer: Vec::new(),
        }
    }

    fn frame(&mut self, kind: u8, payload: &[u8]) -> std::io::Result<()> {
        self.buffer.extend([kind, 0]);
        self.buffer.extend((payload.len() as u16).to_le_bytes());
        self.buffer.extend(payload);
        match self.buffer.len() >= BUFFER {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Says how it ended, and sends everything.
    pub fn end(mut self, outcome: Result<(), (i32, String)>) -> std::io::Result<()> {
        match outcome {
            Ok(()) => self.frame(END, &[])?,
            Err((status, reason)) => {
                let end = reason.floor_char_boundary(MAX_PAYLOAD - 1);
                let payload = [&[status as u8], &reason.as_bytes()[..end]].concat();
                self.frame(FAILED, &payload)?;
            }
        }
        self.flush()
    }
}

impl<W: Write> Write for Answer<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let part = &bytes[..bytes.len().min(MAX_PAYLOAD)];
        if !part.is_empty() {
            self.frame(DATA, part)?;
        }
        Ok(part.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let sent = self.out.write_all(&self.buffer);
        self.buffer.clear();
        sent
    }
}

/// Why an answer ended early.
#[derive(Debug)]
pub enum Ended {
    /// The process refused it: the number of a `trtalloc_status`, and the reason.
    Refused(i32, String),
    /// The connection failed, or what came is no answer.
    Broken(std::io::Error),
}

/// Passes an answer's data to `each`, until it ends.
pub fn receive(mut from: impl Read, mut each: impl FnMut(&[u8]) -> std::io::Result<()>) -> Result<(), Ended> {
    let (mut header, mut payload) = ([0; FRAME_HEADER], [0; MAX_PAYLOAD]);
    loop {
        from.read_exact(&mut header).map_err(Ended::Broken)?;
        let [kind, zero, low, high] = header;
        let length = usize::from(u16::from_le_bytes([low, high]));
        let strange = || Ended::Broken(std::io::ErrorKind::InvalidData.into());
        let payload = payload.get_mut(..length).filter(|_| zero == 0).ok_or_else(strange)?;
        from.read_exact(payload).map_err(Ended::Broken)?;
        match (kind, &*payload) {
            (DATA, data) => each(data).map_err(Ended::Broken)?,
            (END, []) => return Ok(()),
            (FAILED, [status, reason @ ..]) => {
                let reason = String::from_utf8_lossy(reason).into_owned();
                return Err(Ended::Refused((*status).into(), reason));
            }
            _ => return Err(strange()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_comes_back_and_no_prefix_is_one() {
        let request = Request::new("history")
            .with("options", "all,stacks=native")
            .with("name", "a=b\n\"ü\"")
            .with("empty", "");
        let message = request.encode().unwrap();
        assert_eq!(Request::decode(&message).unwrap(), request);
        assert_eq!(Request::missing(&message), Ok(0));
        for length in 0..message.len() {
            let missing = Request::missing(&message[..length]).unwrap();
            assert!(missing > 0 && length + missing <= message.len(), "{length}");
            assert!(Request::decode(&message[..length]).is_err(), "{length}");
        }
        let longer = [message.as_slice(), b"x"].concat();
        assert!(Request::missing(&longer).is_err());
        // A byte that is wrong is refused, or changes a text.
        for at in 0..message.len() {
            for wrong in [0, 0xff, message[at] ^ 1] {
                let mut other = message.clone();
                other[at] = wrong;
                if let Ok(other) = Request::decode(&other) {
                    assert!(other != request || message[at] == wrong, "{at} {wrong}");
                }
            }
        }
    }

    #[test]
    fn request_is_one_message() {
        let of = |bytes: usize| Request::new("tags").with("name", "x".repeat(bytes)).encode();
        let longest = of(MAX_MESSAGE - REQUEST_HEADER - "tags\0name=".len()).unwrap();
        assert_eq!(longest.len(), MAX_MESSAGE);
        assert!(Request::decode(&longest).is_ok());
        assert!(of(MAX_MESSAGE).is_none());
        assert!(Request::new("tags").with("name", "a\0b").encode().is_none());
        let twice = Request::new("tags").with("name", 1).with("name", 2).encode().unwrap();
        assert!(Request::decode(&twice).is_err());
        let mut long = longest;
        long[REQUEST_HEADER - 1] = 0x10;
        assert!(Request::missing(&long).is_err());
    }

    fn answer(data: &[u8], outcome: Result<(), (i32, String)>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut answer = Answer::new(&mut bytes);
        answer.write_all(data).unwrap();
        answer.end(outcome).unwrap();
        bytes
    }

    #[test]
    fn answer_comes_back_and_no_prefix_is_complete() {
        let data: Vec<u8> = (0..100_000u32).map(|number| number as u8).collect();
        let bytes = answer(&data, Ok(()));
        let mut got: Vec<u8> = Vec::new();
        let mut collect = |part: &[u8]| {
            got.extend(part);
            Ok(())
        };
        receive(&bytes[..], &mut collect).unwrap();
        assert_eq!(got, data);
        let bytes = answer(b"some", Ok(()));
        for length in 0..bytes.len() {
            assert!(matches!(receive(&bytes[..length], |_| Ok(())), Err(Ended::Broken(_))));
        }
        let reason = "ü".repeat(MAX_MESSAGE);
        match receive(&answer(b"", Err((3, reason)))[..], |_| Ok(())) {
            Err(Ended::Refused(3, reason)) => assert!(reason.len() > 4000 && reason.chars().all(|c| c == 'ü')),
            other => panic!("{other:?}"),
        }
        for strange in [&b"q\0\0\0"[..], b"d\x01\0\0", b"d\0\xff\xff", b"e\0\0\0", b"z\0\x01\0x"] {
            assert!(
                matches!(receive(strange, |_| Ok(())), Err(Ended::Broken(_))),
                "{strange:?}"
            );
        }
    }
}
