//! The macro that defines the options: their struct, help, defaults, and precedence.

use super::text::Text;

/// The value of an option, if it is given.
pub(super) trait Given {
    /// This one if it is given, else the other.
    fn or(self, other: Self) -> Self;

    /// The value as it is written; empty without one.
    fn text(&self) -> String;
}

impl<T: Text> Given for Option<T> {
    fn or(self, other: Self) -> Self {
        self.or(other)
    }

    fn text(&self) -> String {
        self.as_ref().map(Text::text).unwrap_or_default()
    }
}

/// A list given replaces the other whole.
impl<T: Text> Given for Vec<T> {
    fn or(self, other: Self) -> Self {
        if self.is_empty() { other } else { self }
    }

    fn text(&self) -> String {
        self.iter().map(Text::text).collect::<Vec<_>>().join(",")
    }
}

/// The value as it is written.
pub(super) fn text_of<T: Text>(value: T) -> String {
    value.text()
}

/// The help of an option: its docstring, which has a space before each line, and its default.
pub(super) fn help(doc: &str, default: Option<String>) -> String {
    let default = default.map(|it| format!(" [default: {it}]")).unwrap_or_default();
    format!("{}{default}", doc.trim_start())
}

/// Defines the options, and what the fields do alike. The docstring of a field is the option's help. Behind `=` stands
/// its default, behind `=>` a default in words: one that depends on other options or on the machine.
macro_rules! options {
    ($(#[$($meta:tt)*])* pub struct $name:ident {
        $(
            $(#[doc = $doc:literal])+
            $(#[arg($($arg:tt)*)])+
            $(#[serde($($serde:tt)*)])?
            pub $field:ident: $type:ty $(= $default:expr)? $(=> $words:literal)?,
        )*
    }) => {
        $(#[$($meta)*])*
        pub struct $name {
            $(
                $(#[doc = $doc])+
                $(#[arg($($arg)*)])+
                #[arg(help_heading = heading(stringify!($field)))]
                #[arg(help = help(
                    concat!($($doc),+),
                    None$(.or(Some(text_of::<Inner<$type>>($default))))?$(.or(Some($words.to_owned())))?,
                ))]
                $(#[serde($($serde)*)])?
                pub $field: $type,
            )*
        }

        impl $name {
            $($(
                /// The value of this option, or its default.
                pub fn $field(&self) -> Inner<$type> {
                    self.$field.clone().unwrap_or_else(|| $default)
                }
            )?)*

            /// Returns these options, completed by the others where these are unset.
            #[must_use]
            pub fn over(self, file: Self) -> Self {
                Self { $($field: Given::or(self.$field, file.$field)),* }
            }

            /// Every option by name, with its value or default as text.
            pub(super) fn texts(&self) -> Vec<(String, String)> {
                vec![$((
                    stringify!($field).replace('_', "-"),
                    Given::text(&self.$field.clone()$(.or(Some($default)))?),
                )),*]
            }
        }
    };
}

pub(super) use options;

/// The type of an optional value.
pub(super) type Inner<T> = <T as IntoIterator>::Item;
