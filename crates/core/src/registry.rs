//! Typed payloads in envelopes: which serialiser wrote these bytes, of which type (A12).
//!
//! A type is registered once, under the number of its serialiser and a name that other
//! programs know too. Encoding finds the serialiser by the Rust type, decoding by number
//! and name, so that programs with different types can read one another.
//!
//! No serialiser is here: the formats are chosen by the programs that use them.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::ToString;
use alloc::sync::Arc;
use core::any::{Any, TypeId, type_name};
use core::fmt;
use core::marker::PhantomData;

use bytes::Bytes;

use crate::ack::RejectReason;
use crate::message::Message;

/// A payload on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Which serialiser wrote the bytes.
    pub serializer_id: u32,
    /// The name under which the payload's type was registered.
    pub type_name: Arc<str>,
    /// The payload.
    pub bytes: Bytes,
}

/// The header of a message with the number of the serialiser, in decimal digits.
pub const SERIALIZER_HEADER: &str = "gapless-serializer";
/// The header of a message with the name of the type.
pub const TYPE_HEADER: &str = "gapless-type";

impl Envelope {
    /// The message that carries it: number and name are headers, the bytes are the body.
    pub fn into_message(self) -> Message {
        let number = self.serializer_id.to_string().into_bytes();
        let name = Bytes::copy_from_slice(self.type_name.as_bytes());
        let message = Message::new(self.bytes);
        message.with_header(SERIALIZER_HEADER, number).with_header(TYPE_HEADER, name)
    }

    /// The envelope that a message carries.
    ///
    /// # Errors
    /// The header that is missing or no good: then it carries none.
    pub fn of_message(message: &Message) -> Result<Self, &'static str> {
        let text = |header: &'static str| {
            let value = message.header(header).and_then(|value| core::str::from_utf8(value).ok());
            value.ok_or(header)
        };
        let serializer_id = text(SERIALIZER_HEADER)?.parse().map_err(|_| SERIALIZER_HEADER)?;
        let type_name = Arc::from(text(TYPE_HEADER)?);
        Ok(Self { serializer_id, type_name, bytes: message.body.clone().unwrap_or_default() })
    }
}

/// Turns payloads of one type into bytes and back. What went wrong is reported in its own words;
/// the registry adds which type it was.
pub trait Serializer<T>: Send + Sync {
    /// The bytes of a payload.
    fn serialize(&self, payload: &T) -> Result<Bytes, &'static str>;

    /// The payload behind bytes.
    fn deserialize(&self, bytes: &Bytes) -> Result<T, &'static str>;
}

/// Why a type was not registered. Nothing is changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The Rust type has a serialiser already.
    #[error("{rust_type} has a serialiser already: register each type once")]
    TypeTaken {
        /// The type.
        rust_type: &'static str,
    },
    /// Number and name stand for another type already.
    #[error("serialiser {serializer_id} knows {type_name:?} already: choose another name")]
    NameTaken {
        /// The serialiser's number.
        serializer_id: u32,
        /// The name.
        type_name: Arc<str>,
    },
}

/// Why a payload was not put into an envelope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The type has no serialiser.
    #[error("{rust_type} has no serialiser: register one")]
    NotRegistered {
        /// The type.
        rust_type: &'static str,
    },
    /// The serialiser could not do it.
    #[error("{rust_type} was not serialised: {why}")]
    Failed {
        /// The type.
        rust_type: &'static str,
        /// The serialiser's words.
        why: &'static str,
    },
}

impl From<EncodeError> for RejectReason {
    /// For a publisher all causes are one reason.
    fn from(_: EncodeError) -> Self {
        Self::NotSerializable
    }
}

/// Why a payload was not taken out of its envelope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Nothing is registered under this number and name.
    #[error("serialiser {serializer_id} does not know {type_name:?}: register it")]
    NotRegistered {
        /// The serialiser's number.
        serializer_id: u32,
        /// The name.
        type_name: Arc<str>,
    },
    /// The envelope holds another type than the one asked for.
    #[error("the envelope holds {type_name:?}, not a {rust_type}: ask for what it holds")]
    OtherType {
        /// The name in the envelope.
        type_name: Arc<str>,
        /// The type asked for.
        rust_type: &'static str,
    },
    /// The serialiser could not read the bytes.
    #[error("{type_name:?} was not read: {why}")]
    Failed {
        /// The name in the envelope.
        type_name: Arc<str>,
        /// The serialiser's words.
        why: &'static str,
    },
}

/// The types that can travel.
#[derive(Default)]
pub struct Registry {
    // Only looked up, never walked: the order of type ids differs between builds.
    by_type: BTreeMap<TypeId, Entry>,
    by_name: BTreeMap<(u32, Arc<str>), TypeId>,
}

struct Entry {
    serializer_id: u32,
    type_name: Arc<str>,
    serializer: Box<dyn Erased>,
}

/// A serialiser whose type was forgotten, so that all fit one map.
trait Erased: Send + Sync {
    fn encode(&self, payload: &dyn Any) -> Result<Bytes, &'static str>;
    fn decode(&self, bytes: &Bytes) -> Result<Box<dyn Any>, &'static str>;
}

struct Typed<T, S> {
    serializer: S,
    payload: PhantomData<fn(&T) -> T>,
}

impl<T: Any, S: Serializer<T>> Erased for Typed<T, S> {
    fn encode(&self, payload: &dyn Any) -> Result<Bytes, &'static str> {
        let payload = payload.downcast_ref().expect("an entry is found by its own type");
        self.serializer.serialize(payload)
    }

    fn decode(&self, bytes: &Bytes) -> Result<Box<dyn Any>, &'static str> {
        let payload = self.serializer.deserialize(bytes)?;
        Ok(Box::new(payload))
    }
}

impl Registry {
    /// A registry that knows no type.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a type able to travel.
    pub fn register<T: Any>(
        &mut self,
        serializer_id: u32,
        type_name: &str,
        serializer: impl Serializer<T> + 'static,
    ) -> Result<(), RegisterError> {
        let id = TypeId::of::<T>();
        if self.by_type.contains_key(&id) {
            return Err(RegisterError::TypeTaken { rust_type: core::any::type_name::<T>() });
        }
        let type_name: Arc<str> = Arc::from(type_name);
        let key = (serializer_id, Arc::clone(&type_name));
        if self.by_name.contains_key(&key) {
            return Err(RegisterError::NameTaken { serializer_id, type_name });
        }
        self.by_name.insert(key, id);
        let serializer = Box::new(Typed { serializer, payload: PhantomData });
        self.by_type.insert(id, Entry { serializer_id, type_name, serializer });
        Ok(())
    }

    /// Puts a payload into an envelope.
    pub fn encode<T: Any>(&self, payload: &T) -> Result<Envelope, EncodeError> {
        let rust_type = type_name::<T>();
        let entry =
            self.by_type.get(&TypeId::of::<T>()).ok_or(EncodeError::NotRegistered { rust_type })?;
        let bytes = entry
            .serializer
            .encode(payload)
            .map_err(|why| EncodeError::Failed { rust_type, why })?;
        let type_name = Arc::clone(&entry.type_name);
        Ok(Envelope { serializer_id: entry.serializer_id, type_name, bytes })
    }

    /// Takes a payload of any type out of its envelope.
    pub fn decode_any(&self, envelope: &Envelope) -> Result<Box<dyn Any>, DecodeError> {
        let type_name = &envelope.type_name;
        let key = (envelope.serializer_id, Arc::clone(type_name));
        let entry = self.by_name.get(&key).and_then(|id| self.by_type.get(id));
        let entry = entry.ok_or_else(|| DecodeError::NotRegistered {
            serializer_id: envelope.serializer_id,
            type_name: Arc::clone(type_name),
        })?;
        let failed = |why| DecodeError::Failed { type_name: Arc::clone(type_name), why };
        entry.serializer.decode(&envelope.bytes).map_err(failed)
    }

    /// Takes a payload of a known type out of its envelope.
    pub fn decode<T: Any>(&self, envelope: &Envelope) -> Result<T, DecodeError> {
        let payload = self.decode_any(envelope)?.downcast::<T>();
        payload.map(|payload| *payload).map_err(|_| DecodeError::OtherType {
            type_name: Arc::clone(&envelope.type_name),
            rust_type: type_name::<T>(),
        })
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_name.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Order(u32);
    #[derive(Debug, PartialEq)]
    struct Refund(u32);
    struct Plain;

    impl Serializer<Order> for Plain {
        fn serialize(&self, order: &Order) -> Result<Bytes, &'static str> {
            match order.0 {
                0 => Err("an order of nothing"),
                count => Ok(Bytes::copy_from_slice(&count.to_le_bytes())),
            }
        }

        fn deserialize(&self, bytes: &Bytes) -> Result<Order, &'static str> {
            let count = <[u8; 4]>::try_from(&bytes[..]).map_err(|_| "not four bytes")?;
            Ok(Order(u32::from_le_bytes(count)))
        }
    }

    impl Serializer<Refund> for Plain {
        fn serialize(&self, _: &Refund) -> Result<Bytes, &'static str> {
            Ok(Bytes::new())
        }

        fn deserialize(&self, _: &Bytes) -> Result<Refund, &'static str> {
            Ok(Refund(0))
        }
    }

    fn registry() -> Registry {
        let mut registry = Registry::new();
        registry.register::<Order>(7, "shop.order", Plain).unwrap();
        registry
    }

    #[test]
    fn a12_a_payload_comes_out_of_its_envelope_as_it_went_in() {
        let registry = registry();
        let envelope = registry.encode(&Order(5)).unwrap();
        assert_eq!(envelope.serializer_id, 7);
        assert_eq!(&*envelope.type_name, "shop.order");
        assert_eq!(registry.decode::<Order>(&envelope), Ok(Order(5)));
    }

    #[test]
    fn a12_what_cannot_be_serialised_is_not_serializable() {
        let registry = registry();
        let missing = registry.encode(&Refund(1)).unwrap_err();
        assert_eq!(RejectReason::from(missing), RejectReason::NotSerializable);
        let failed = registry.encode(&Order(0)).unwrap_err();
        assert!(matches!(failed, EncodeError::Failed { why: "an order of nothing", .. }));
        assert_eq!(RejectReason::from(failed), RejectReason::NotSerializable);
    }

    #[test]
    fn a12_registering_twice_is_an_error() {
        let mut registry = registry();
        let again = registry.register::<Order>(8, "other", Plain);
        assert!(matches!(again, Err(RegisterError::TypeTaken { .. })));
        let taken = registry.register::<Refund>(7, "shop.order", Plain);
        assert!(matches!(taken, Err(RegisterError::NameTaken { serializer_id: 7, .. })));
        assert!(registry.encode(&Refund(1)).is_err());
    }

    #[test]
    fn a_foreign_or_damaged_envelope_is_told_apart() {
        let mut registry = registry();
        registry.register::<Refund>(7, "shop.refund", Plain).unwrap();
        let mut envelope = registry.encode(&Order(5)).unwrap();
        let other = registry.decode::<Refund>(&envelope);
        assert!(matches!(other, Err(DecodeError::OtherType { .. })));
        envelope.bytes = Bytes::from_static(b"x");
        let failed = registry.decode::<Order>(&envelope);
        assert!(matches!(failed, Err(DecodeError::Failed { why: "not four bytes", .. })));
        envelope.serializer_id = 9;
        let unknown = registry.decode::<Order>(&envelope);
        assert!(matches!(unknown, Err(DecodeError::NotRegistered { serializer_id: 9, .. })));
    }
}
