//! The verbs, one file per family, each with its fields, their reading and their writing.

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
                out.put_slice(&settings_bytes(&self.settings));
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

pub mod ack;
pub mod follow;
pub mod group;
pub mod group_admin;
pub mod lookup;
pub mod publish;
pub mod session;
pub mod topics;
