//! The encoder of commands: each one becomes a RESP array of bulk strings in one buffer.
//!
//! All commands of a batch are written to one buffer, and a connection sends them with one write.
//! The buffer keeps its memory from batch to batch. Nothing here sends anything.
//!
//! Source: redis.io, "Redis serialization protocol specification", "Sending commands to a Redis
//! server".

use bb8_redis::redis::{Cmd, ToRedisArgs};

/// A buffer that grew beyond this size for one large batch is shrunk to it.
const RETAINED_BYTES: usize = 64 << 10;

/// Buffer of encoded commands, one after the other.
#[derive(Debug, Default)]
pub(crate) struct CommandBuffer {
    bytes: Vec<u8>,
    commands: usize,
    command: Cmd,
    /// For the caller to build keys in.
    pub(crate) key: Vec<u8>,
}

impl CommandBuffer {
    /// Begins a command. The caller adds its arguments and then calls [`CommandBuffer::end`].
    pub(crate) fn command<T: ToRedisArgs>(&mut self, name: T) -> &mut Cmd {
        self.begin().arg(name)
    }

    /// Begins a command without a name. The caller adds the name and the arguments and then calls
    /// [`CommandBuffer::end`].
    pub(crate) fn begin(&mut self) -> &mut Cmd {
        self.command.clear();
        &mut self.command
    }

    /// Encodes the command that was begun last.
    pub(crate) fn end(&mut self) {
        self.command.write_packed_command(&mut self.bytes);
        self.commands += 1;
    }

    /// Encodes a whole command: its name and its arguments.
    pub(crate) fn push<const N: usize>(&mut self, arguments: [&[u8]; N]) {
        self.prefix(b'*', N);
        for argument in arguments {
            self.prefix(b'$', argument.len());
            self.bytes.extend_from_slice(argument);
            self.bytes.extend_from_slice(b"\r\n");
        }
        self.commands += 1;
    }

    /// Writes the prefix of an array (`*`) or a bulk string (`$`) of this size.
    fn prefix(&mut self, data_type: u8, size: usize) {
        self.bytes.push(data_type);
        self.bytes
            .extend_from_slice(itoa::Buffer::new().format(size).as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// The number of encoded commands. Redis sends one reply to each.
    pub(crate) const fn commands(&self) -> usize {
        self.commands
    }

    /// The encoded commands.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Removes all commands, and keeps at most `RETAINED_BYTES` of memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(RETAINED_BYTES);
        self.commands = 0;
    }
}
