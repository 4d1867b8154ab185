//! RESP as the fake server speaks it: commands are decoded, replies are encoded.
//!
//! It is written apart from the encoder and decoder of the store, because one has to test the
//! other; neither may use the other.

/// A command: its name and arguments.
pub(super) type Command = Vec<Vec<u8>>;

/// Removes the first complete command from the received bytes.
pub(super) fn take(input: &mut Vec<u8>) -> Option<Command> {
    let mut at = 0;
    let count = number(input, &mut at, b'*')?;
    let mut command = Vec::with_capacity(count);
    for _ in 0..count {
        let length = number(input, &mut at, b'$')?;
        command.push(input.get(at..at + length)?.to_vec());
        at += length + 2;
    }
    if at > input.len() {
        return None;
    }
    input.drain(..at);
    Some(command)
}

fn number(input: &[u8], at: &mut usize, data_type: u8) -> Option<usize> {
    let rest = input.get(*at..)?;
    let end = rest.windows(2).position(|two| two == b"\r\n")?;
    assert_eq!(
        rest[0],
        data_type,
        "not a command: {:?}",
        String::from_utf8_lossy(&rest[..end])
    );
    *at += end + 2;
    std::str::from_utf8(&rest[1..end]).ok()?.parse().ok()
}

/// A RESP2 reply.
#[derive(Clone, Debug)]
pub(super) enum RespReply {
    SimpleString(&'static str),
    /// The line without its `-`.
    Error(String),
    Integer(i64),
    BulkString(Vec<u8>),
    Null,
    Array(Vec<RespReply>),
}

impl RespReply {
    pub(super) fn bulk_string(text: &(impl ToString + ?Sized)) -> Self {
        Self::BulkString(text.to_string().into_bytes())
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::SimpleString(line) => out.extend(format!("+{line}\r\n").as_bytes()),
            Self::Error(line) => out.extend(format!("-{line}\r\n").as_bytes()),
            Self::Integer(number) => out.extend(format!(":{number}\r\n").as_bytes()),
            Self::BulkString(text) => {
                out.extend(format!("${}\r\n", text.len()).as_bytes());
                out.extend(text);
                out.extend(b"\r\n");
            }
            Self::Null => out.extend(b"$-1\r\n"),
            Self::Array(replies) => {
                out.extend(format!("*{}\r\n", replies.len()).as_bytes());
                for reply in replies {
                    reply.write(out);
                }
            }
        }
    }
}
