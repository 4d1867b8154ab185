//! Commands on their way to Redis, packed as the arrays of bulk strings that a client sends.
//!
//! Source: redis.io, "Redis serialization protocol specification", "Sending commands to a Redis server".

use bb8_redis::redis::{Cmd, ToRedisArgs};

/// A buffer that grew beyond this for one large request is shrunk.
const KEPT_BYTES: usize = 64 << 10;

/// Commands on their way out, packed into one run of bytes.
#[derive(Debug, Default)]
pub(crate) struct CommandBuffer {
    bytes: Vec<u8>,
    commands: usize,
    command: Cmd,
}

impl CommandBuffer {
    /// Begins a command; arguments may follow, then [`CommandBuffer::end`].
    pub(crate) fn command<T: ToRedisArgs>(&mut self, name: T) -> &mut Cmd {
        self.begin().arg(name)
    }

    /// Begins a command whose name is to follow.
    pub(crate) fn begin(&mut self) -> &mut Cmd {
        self.command.clear();
        &mut self.command
    }

    /// Packs the command that was begun last.
    pub(crate) fn end(&mut self) {
        self.command.write_packed_command(&mut self.bytes);
        self.commands += 1;
    }

    /// Packs a whole command.
    pub(crate) fn push<const N: usize>(&mut self, arguments: [&[u8]; N]) {
        self.size(b'*', N);
        for argument in arguments {
            self.size(b'$', argument.len());
            self.bytes.extend_from_slice(argument);
            self.bytes.extend_from_slice(b"\r\n");
        }
        self.commands += 1;
    }

    fn size(&mut self, kind: u8, size: usize) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(itoa::Buffer::new().format(size).as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// How many commands are packed.
    pub(crate) const fn commands(&self) -> usize {
        self.commands
    }

    /// The packed commands.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
        self.commands = 0;
    }
}
