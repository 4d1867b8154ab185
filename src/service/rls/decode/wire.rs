//! A reader of the protobuf wire format that copies nothing.
//!
//! A message is an iterator of numbered fields, which borrow from it. Source: protobuf.dev,
//! "Encoding".

/// Why bytes are not a message: the reason, as error messages show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub &'static str);

/// How deep groups may be nested. Envoy sends none; the bound protects the stack.
const MAX_GROUP_DEPTH: usize = 32;

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// Eight bytes, four bytes or a group. No known field has such a type.
    Skipped,
}

/// The fields of a message, in the order of the wire. Ends after the first error.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    fn field(&mut self) -> Result<(u64, Value<'a>), Malformed> {
        let (number, wire_type) = self.tag()?;
        Ok((number, self.value(number, wire_type, 0)?))
    }

    fn tag(&mut self) -> Result<(u64, u64), Malformed> {
        let tag = self.varint()?;
        if tag > u64::from(u32::MAX) || tag >> 3 == 0 {
            return Err(Malformed("invalid field number"));
        }
        Ok((tag >> 3, tag & 7))
    }

    fn value(&mut self, number: u64, wire_type: u64, depth: usize) -> Result<Value<'a>, Malformed> {
        match wire_type {
            0 => self.varint().map(Value::Varint),
            1 => self.take(8).map(|_| Value::Skipped),
            2 => {
                let length = self.varint()?;
                self.take(usize::try_from(length).unwrap_or(usize::MAX))
                    .map(Value::Bytes)
            }
            3 if depth < MAX_GROUP_DEPTH => self.group(number, depth),
            3 => Err(Malformed("groups are nested too deep")),
            5 => self.take(4).map(|_| Value::Skipped),
            _ => Err(Malformed("invalid wire type")),
        }
    }

    fn group(&mut self, opened: u64, depth: usize) -> Result<Value<'a>, Malformed> {
        loop {
            match self.tag()? {
                (closed, 4) if closed == opened => return Ok(Value::Skipped),
                (number, wire_type) => self.value(number, wire_type, depth + 1)?,
            };
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(Malformed("truncated"))?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, Malformed> {
        match self.rest {
            // Nearly all: tags, lengths and hits.
            &[byte @ 0..0x80, ref rest @ ..] => {
                self.rest = rest;
                Ok(u64::from(byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0_u64;
        for (index, &byte) in self.rest.iter().enumerate().take(10) {
            if index == 9 && byte > 1 {
                break;
            }
            number |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                self.rest = &self.rest[index + 1..];
                return Ok(number);
            }
        }
        Err(Malformed(if self.rest.len() < 10 {
            "truncated"
        } else {
            "a varint of more than 64 bits"
        }))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}
