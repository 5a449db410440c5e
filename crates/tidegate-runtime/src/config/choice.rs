//! Choices of one word, as they are written in files.

/// Declares a choice as it is written in files, the default first: an enum that serde reads and writes, with its word.
///
/// The crate that uses it depends on serde with its derives.
///
/// ```
/// tidegate_runtime::choice! {
///     /// What one token buys.
///     Unit {
///         /// A message.
///         Messages = "messages",
///         /// A byte.
///         Bytes = "bytes",
///     }
/// }
/// assert_eq!(Unit::default().word(), "messages");
/// ```
#[macro_export]
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $(#[$first_doc:meta])* $first:ident = $first_word:literal,
        $($(#[$rest_doc:meta])* $rest:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ::serde::Deserialize, ::serde::Serialize)]
        pub enum $name {
            $(#[$first_doc])*
            #[default]
            #[serde(rename = $first_word)]
            $first,
            $($(#[$rest_doc])* #[serde(rename = $word)] $rest,)*
        }

        impl $name {
            /// As it is written.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    Self::$first => $first_word,
                    $(Self::$rest => $word,)*
                }
            }
        }
    };
}
