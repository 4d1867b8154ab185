//! Messages about mistakes in limits: each has a code, and its sentences are a row of a table.

use std::fmt;

use serde::{Serialize, Serializer};

/// The stable name of a kind of mistake: words in lower case. They are shown with dashes, and
/// stored as the name of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code(pub(crate) &'static str);

impl fmt::Display for Code {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0.replace('_', "-"))
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A mistake and its correction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// The kind of mistake.
    pub code: Code,
    /// The mistake.
    pub what: String,
    /// The correction.
    pub remedy: String,
}

impl Message {
    /// Names the right word for a wrong one, if there is one that is near.
    #[must_use]
    pub(crate) fn or_near(self, near: Option<&str>) -> Self {
        let remedy = near.map_or(self.remedy, |near| format!("write '{near}'"));
        Self { remedy, ..self }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}; {}", self.what, self.remedy)
    }
}

/// A table of messages. A row has a name and arguments, the mistake, and the correction. The code
/// is the name, or another one after `as`. Each row is a function that returns a [`Message`].
macro_rules! messages {
    (@code $name:ident) => { $crate::core::message::Code(stringify!($name)) };
    (@code $name:ident $code:ident) => { $crate::core::message::Code(stringify!($code)) };
    ($(
        $name:ident($($argument:ident),*) $(as $code:ident)? => $what:literal, $remedy:literal;
    )+) => {
        /// The code of each message.
        pub(crate) const CODES: &[$crate::core::message::Code] =
            &[$(messages!(@code $name $($code)?)),+];

        $(
            pub(crate) fn $name(
                $($argument: impl std::fmt::Display),*
            ) -> $crate::core::message::Message {
                $crate::core::message::Message {
                    code: messages!(@code $name $($code)?),
                    what: format!($what),
                    remedy: format!($remedy),
                }
            }
        )+
    };
}
pub(crate) use messages;
