//! Enums whose variants have names.

/// Declares an enum with `ALL` and `as_str` from a table of its variants and their names.
macro_rules! named_enum {
    (
        $(#[$attribute:meta])*
        pub enum $Enum:ident { $($(#[$doc:meta])* $Variant:ident = $name:literal,)+ }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $Enum { $($(#[$doc])* #[doc = concat!("`", $name, "`")] $Variant,)+ }

        impl $Enum {
            /// All variants in order.
            pub const ALL: [$Enum; [$($name),+].len()] = [$($Enum::$Variant),+];

            /// The names of all variants in order.
            pub const NAMES: &[&str] = &[$($name),+];

            /// Returns the variant with this name.
            pub fn named(name: &str) -> Option<$Enum> {
                $Enum::ALL.into_iter().find(|variant| variant.as_str() == name)
            }

            /// The name.
            pub const fn as_str(self) -> &'static str {
                match self { $($Enum::$Variant => $name),+ }
            }
        }
    };
}
pub(crate) use named_enum;

/// Returns words as `a, b or c`.
pub(crate) fn listed(words: &[&str], conjunction: &str) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => {
            format!("{} {conjunction} {last}", first.join(", "))
        }
        words => words.join(""),
    }
}
