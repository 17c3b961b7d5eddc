//! Enums whose values are listed in one place, each with its words.

/// Defines an enum without fields, with its values in this order as `ALL`, and their words for people as `words`:
///
/// ```
/// weir_text::listed! {
///     /// Why a packet was left alone.
///     #[derive(Debug, Clone, Copy, PartialEq, Eq)]
///     pub enum Reason {
///         /// A fragment: only the first one has ports.
///         Fragment = "fragment",
///         /// TTL or hop limit 1.
///         LastHop = "TTL or hop limit 1",
///     }
/// }
/// assert_eq!(Reason::ALL.map(Reason::words), ["fragment", "TTL or hop limit 1"]);
/// ```
///
/// Without `= "..."` behind every value there is no `words`.
#[macro_export]
macro_rules! listed {
    ($(#[$attribute:meta])* $visibility:vis enum $name:ident {
        $($(#[$of_value:meta])* $value:ident = $words:literal,)+
    }) => {
        $crate::listed! {
            $(#[$attribute])* $visibility enum $name { $($(#[$of_value])* $value,)+ }
        }

        impl $name {
            /// For people.
            $visibility fn words(self) -> &'static str {
                match self {
                    $($name::$value => $words,)+
                }
            }
        }
    };
    ($(#[$attribute:meta])* $visibility:vis enum $name:ident {
        $($(#[$of_value:meta])* $value:ident,)+
    }) => {
        $(#[$attribute])*
        $visibility enum $name {
            $($(#[$of_value])* $value,)+
        }

        impl $name {
            /// All of them, in their order.
            $visibility const ALL: [$name; [$($name::$value),+].len()] = [$($name::$value),+];
        }
    };
}
