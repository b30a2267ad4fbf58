//! Values that verbs have as fields: how each is read, written and checked, in one place.
//!
//! The macros below make a verb of its fields, so that a verb that only has fields is declared
//! once and has neither a reading nor a writing of its own to disagree with. Fields are on the wire in
//! the order of the declaration. Verbs with a bulk at their end, or with fields that may be
//! missing, are written out in `verbs/`.

use alloc::string::String;
use alloc::vec::Vec;
use bytes::{BufMut, BytesMut};
use gapless_core::batch::put_varint;
use gapless_core::{
    Epoch, GroupSettings, Mode, Pattern, Position, Seq, Timestamp, Token, TopicName, TopicSettings,
};

use crate::verb::VerbError;
use crate::wire::{List, Reader, exists, put_bytes, text};

/// A value that verbs have as a field.
pub(crate) trait Field: Sized {
    /// Reads it; `field` is its name, for the error.
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError>;

    /// Writes it.
    fn put(&self, out: &mut BytesMut);

    /// What reading and writing alike must refuse.
    fn check(&self, _field: &'static str) -> Result<(), VerbError> {
        Ok(())
    }
}

/// A value that verbs have in lists.
pub(crate) trait Item: Field {
    /// What is known of such a list before it is read.
    const LIST: List;
}

/// Verbs that are their fields. One that names a topic, a group or a pattern has it in brackets: it
/// is the subject of the frame. A function behind the fields refuses what the fields alone allow.
macro_rules! plain {
    ($(
        $(#[$attribute:meta])*
        $name:ident $([$(#[$subject_doc:meta])* $subject:ident: $parsed:ident])? {
            $($(#[$doc:meta])* $field:ident: $type:ty $(= $label:literal)?,)+
        } $($check:expr)?;
    )+) => {$(
        $(#[$attribute])*
        pub struct $name {
            $($(#[$subject_doc])* pub $subject: $parsed,)?
            $($(#[$doc])* pub $field: $type,)+
        }

        impl Fields for $name {
            $(fn subject(&self) -> &str {
                self.$subject.as_str()
            })?

            fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
                plain!(@none subject $($subject)?);
                Ok(Self {
                    $($subject: $parsed::parse(subject)?,)?
                    $($field: Field::take(payload, label!($field $($label)?))?,)+
                })
            }

            fn put(&self, out: &mut BytesMut) {
                $(Field::put(&self.$field, out);)+
            }

            fn check(&self) -> Result<(), VerbError> {
                $(Field::check(&self.$field, label!($field $($label)?))?;)+
                $(($check)(self)?;)?
                Ok(())
            }
        }
    )+};
    (@none $given:ident $subject:ident) => {};
    (@none $given:ident) => {
        crate::verb::no_subject($given)?
    };
}

/// Parts of verbs that are a row of fields.
macro_rules! row {
    ($($name:ident { $($field:ident $(= $label:literal)?),+ $(,)? } $($check:expr)?;)+) => {$(
        impl Field for $name {
            fn take(payload: &mut Reader, _: &'static str) -> Result<Self, VerbError> {
                Ok(Self { $($field: Field::take(payload, label!($field $($label)?))?,)+ })
            }

            fn put(&self, out: &mut BytesMut) {
                $(Field::put(&self.$field, out);)+
            }

            fn check(&self, _: &'static str) -> Result<(), VerbError> {
                $(Field::check(&self.$field, label!($field $($label)?))?;)+
                $(($check)(self)?;)?
                Ok(())
            }
        }
    )+};
}

/// The name of a field in errors and in the documentation: its own, if it has no other.
macro_rules! label {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $label:literal) => {
        $label
    };
}

/// A row of fields that is a verb, too.
macro_rules! row_is_verb {
    ($($name:ident)+) => {$(
        impl Fields for $name {
            fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
                crate::verb::no_subject(subject)?;
                Field::take(payload, "")
            }

            fn put(&self, out: &mut BytesMut) {
                Field::put(self, out);
            }

            fn check(&self) -> Result<(), VerbError> {
                Field::check(self, "")
            }
        }
    )+};
}

/// Verbs that say all by their kind.
macro_rules! empty {
    ($($(#[$doc:meta])* $name:ident)+) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name;

        impl Fields for $name {
            fn take(subject: &str, _: &mut Reader) -> Result<Self, VerbError> {
                crate::verb::no_subject(subject)?;
                Ok(Self)
            }

            fn put(&self, _: &mut BytesMut) {}
        })+
    };
}

/// Verbs that name a topic or a group as their subject and carry its settings, in core's own
/// bytes: a setting is described once.
macro_rules! with_settings {
    ($subject:ident: $settings:ident, $($(#[$doc:meta])* $name:ident)+) => {
        $($(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            /// Which one.
            pub $subject: TopicName,
            /// What it shall be.
            pub settings: $settings,
        }

        impl Fields for $name {
            fn subject(&self) -> &str {
                self.$subject.as_str()
            }

            fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
                let $subject = TopicName::parse(subject)?;
                Ok(Self { $subject, settings: $settings::decode(&payload.rest())? })
            }

            fn put(&self, out: &mut BytesMut) {
                let mut bytes = Vec::new();
                self.settings.encode(&mut bytes);
                out.extend_from_slice(&bytes);
            }

            fn check(&self) -> Result<(), VerbError> {
                Ok(self.settings.validate()?)
            }
        })+
    };
}

/// Verbs that name a topic or a group as their subject, and say no more.
macro_rules! name_only {
    ($subject:ident, $($(#[$doc:meta])* $name:ident)+) => {
        $($(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            /// Which one.
            pub $subject: TopicName,
        }

        impl Fields for $name {
            fn subject(&self) -> &str {
                self.$subject.as_str()
            }

            fn take(subject: &str, _: &mut Reader) -> Result<Self, VerbError> {
                Ok(Self { $subject: TopicName::parse(subject)? })
            }

            fn put(&self, _: &mut BytesMut) {}
        })+
    };
}

macro_rules! numbers {
    ($($type:ident $put:ident)+) => {$(
        impl Field for $type {
            fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
                payload.$type(field)
            }

            fn put(&self, out: &mut BytesMut) {
                out.$put(*self);
            }
        }
    )+};
}

numbers! { u16 put_u16_le u32 put_u32_le u64 put_u64_le }

/// Numbers that have a half that does not exist.
macro_rules! places {
    ($($type:ident $take:ident)+) => {$(
        impl Field for $type {
            fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
                payload.$take(field)
            }

            fn put(&self, out: &mut BytesMut) {
                out.put_u64_le(self.0);
            }

            fn check(&self, field: &'static str) -> Result<(), VerbError> {
                exists(self.0, field)
            }
        }
    )+};
}

places! { Seq seq Position position }

/// Numbers that any value is good for.
macro_rules! wrapped {
    ($($type:ident)+) => {$(
        impl Field for $type {
            fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
                payload.u64(field).map(Self)
            }

            fn put(&self, out: &mut BytesMut) {
                out.put_u64_le(self.0);
            }
        }
    )+};
}

wrapped! { Timestamp Epoch }

impl Field for bool {
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
        payload.flag(field)
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(*self));
    }
}

/// Whether it is there, then it.
impl<T: Field> Field for Option<T> {
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
        if payload.flag(field)? { T::take(payload, field).map(Some) } else { Ok(None) }
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(self.is_some()));
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn check(&self, field: &'static str) -> Result<(), VerbError> {
        self.as_ref().map_or(Ok(()), |value| value.check(field))
    }
}

/// How many there are, then each.
impl<T: Item> Field for Vec<T> {
    fn take(payload: &mut Reader, _: &'static str) -> Result<Self, VerbError> {
        let count = payload.count(&T::LIST)?;
        let mut items = Self::with_capacity(count);
        for _ in 0..count {
            items.push(T::take(payload, T::LIST.field)?);
        }
        Ok(items)
    }

    fn put(&self, out: &mut BytesMut) {
        put_varint(out, self.len() as u64);
        self.iter().for_each(|item| item.put(out));
    }

    fn check(&self, _: &'static str) -> Result<(), VerbError> {
        T::LIST.check(self.len())?;
        self.iter().try_for_each(|item| item.check(T::LIST.field))
    }
}

impl Field for String {
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
        payload.text(field)
    }

    fn put(&self, out: &mut BytesMut) {
        put_bytes(out, self.as_bytes());
    }
}

impl Field for TopicName {
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
        payload.name(field)
    }

    fn put(&self, out: &mut BytesMut) {
        put_bytes(out, self.as_str().as_bytes());
    }
}

impl Field for Pattern {
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
        Ok(Self::parse(text(&payload.bytes(field)?, field)?)?)
    }

    fn put(&self, out: &mut BytesMut) {
        put_bytes(out, self.as_str().as_bytes());
    }
}

impl Field for Token {
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
        Ok(Self { epoch: Field::take(payload, field)?, position: Field::take(payload, field)? })
    }

    fn put(&self, out: &mut BytesMut) {
        self.epoch.put(out);
        self.position.put(out);
    }

    fn check(&self, field: &'static str) -> Result<(), VerbError> {
        self.position.check(field)
    }
}

impl Field for Mode {
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
        Self::from_code(payload.u8(field)?).ok_or(VerbError::Value { field })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u8(self.code());
    }
}

/// Settings in core's own bytes, with their length before them.
macro_rules! settings {
    ($($type:ident)+) => {$(
        impl Field for $type {
            fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
                Ok(Self::decode(&payload.bytes(field)?)?)
            }

            fn put(&self, out: &mut BytesMut) {
                let mut bytes = Vec::new();
                self.encode(&mut bytes);
                put_bytes(out, &bytes);
            }

            fn check(&self, _: &'static str) -> Result<(), VerbError> {
                Ok(self.validate()?)
            }
        }
    )+};
}

settings! { TopicSettings GroupSettings }
