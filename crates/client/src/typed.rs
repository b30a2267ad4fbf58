//! Typed payloads (A12): JSON and MessagePack, and envelopes as headers of a message.
//!
//! A type is registered under a name that other programs know too. Its messages carry the
//! number of the serialiser and that name in two headers, and the bytes as their body.

use std::any::Any;

use bytes::Bytes;
pub use gapless_core::registry::{SERIALIZER_HEADER, TYPE_HEADER};
use gapless_core::{EncodeError, Envelope, Message, RegisterError, Registry, Serializer};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::TypedError;

/// The number of [`Json`].
pub const JSON: u32 = 1;
/// The number of [`MessagePack`].
pub const MESSAGE_PACK: u32 = 2;
/// Payloads as JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Json;

impl<T: Serialize + DeserializeOwned> Serializer<T> for Json {
    fn serialize(&self, payload: &T) -> Result<Bytes, &'static str> {
        serde_json::to_vec(payload).map(Bytes::from).map_err(|_| "it cannot be JSON")
    }

    fn deserialize(&self, bytes: &Bytes) -> Result<T, &'static str> {
        serde_json::from_slice(bytes).map_err(|_| "it is not JSON of this type")
    }
}

/// Payloads as MessagePack, with the names of fields, so that they can be added later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessagePack;

impl<T: Serialize + DeserializeOwned> Serializer<T> for MessagePack {
    fn serialize(&self, payload: &T) -> Result<Bytes, &'static str> {
        rmp_serde::to_vec_named(payload).map(Bytes::from).map_err(|_| "it cannot be MessagePack")
    }

    fn deserialize(&self, bytes: &Bytes) -> Result<T, &'static str> {
        rmp_serde::from_slice(bytes).map_err(|_| "it is not MessagePack of this type")
    }
}

/// Registers types with the serialisers that come with the client.
///
/// ```
/// use gapless_client::{Registry, RegistryExt};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Order { number: u32 }
///
/// let mut registry = Registry::new();
/// registry.json::<Order>("shop.order")?;
/// # Ok::<(), gapless_client::RegisterError>(())
/// ```
pub trait RegistryExt {
    /// Payloads of this type are JSON.
    ///
    /// # Errors
    /// When the type or the name is registered already; nothing is changed.
    fn json<T: Any + Serialize + DeserializeOwned>(
        &mut self,
        type_name: &str,
    ) -> Result<(), RegisterError>;

    /// Payloads of this type are MessagePack.
    ///
    /// # Errors
    /// When the type or the name is registered already; nothing is changed.
    fn message_pack<T: Any + Serialize + DeserializeOwned>(
        &mut self,
        type_name: &str,
    ) -> Result<(), RegisterError>;
}

impl RegistryExt for Registry {
    fn json<T: Any + Serialize + DeserializeOwned>(
        &mut self,
        type_name: &str,
    ) -> Result<(), RegisterError> {
        self.register::<T>(JSON, type_name, Json)
    }

    fn message_pack<T: Any + Serialize + DeserializeOwned>(
        &mut self,
        type_name: &str,
    ) -> Result<(), RegisterError> {
        self.register::<T>(MESSAGE_PACK, type_name, MessagePack)
    }
}

/// The message that carries a payload.
///
/// # Errors
/// When the type is not registered or cannot be serialised.
pub fn encode<T: Any>(registry: &Registry, payload: &T) -> Result<Message, EncodeError> {
    registry.encode(payload).map(Envelope::into_message)
}

/// The payload that a message carries.
///
/// # Errors
/// When it carries none, another type, or what cannot be read.
pub fn decode<T: Any>(registry: &Registry, message: &Message) -> Result<T, TypedError> {
    let envelope = envelope(message)?;
    Ok(registry.decode(&envelope)?)
}

/// The envelope that a message is.
///
/// # Errors
/// When it is none.
pub fn envelope(message: &Message) -> Result<Envelope, TypedError> {
    Envelope::of_message(message).map_err(|header| TypedError::NoEnvelope { header })
}

#[cfg(test)]
mod tests {
    use gapless_core::{DecodeError, RejectReason};
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Order {
        number: u32,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Refund {
        number: u32,
    }

    fn registry() -> Registry {
        let mut registry = Registry::new();
        registry.json::<Order>("shop.order").unwrap();
        registry.message_pack::<Refund>("shop.refund").unwrap();
        registry
    }

    #[test]
    fn a12_json_and_message_pack_come_back_as_they_went() {
        let registry = registry();
        let order = encode(&registry, &Order { number: 7 }).unwrap();
        assert_eq!(order.body.as_deref(), Some(&br#"{"number":7}"#[..]));
        assert_eq!(order.header(SERIALIZER_HEADER).map(|v| &v[..]), Some(&b"1"[..]));
        assert_eq!(decode(&registry, &order), Ok(Order { number: 7 }));
        let refund = encode(&registry, &Refund { number: 8 }).unwrap();
        assert_eq!(refund.header(SERIALIZER_HEADER).map(|v| &v[..]), Some(&b"2"[..]));
        assert_eq!(decode(&registry, &refund), Ok(Refund { number: 8 }));
    }

    #[test]
    fn a12_what_is_not_registered_is_not_serializable() {
        let error = encode(&registry(), &5_u64).unwrap_err();
        assert_eq!(RejectReason::from(error), RejectReason::NotSerializable);
    }

    #[test]
    fn plain_foreign_and_broken_messages_are_told_apart() {
        let registry = registry();
        let plain = decode::<Order>(&registry, &Message::new("x"));
        assert_eq!(plain, Err(TypedError::NoEnvelope { header: SERIALIZER_HEADER }));
        let order = encode(&registry, &Order { number: 7 }).unwrap();
        let foreign = decode::<Refund>(&registry, &order);
        assert!(matches!(foreign, Err(TypedError::Decode(DecodeError::OtherType { .. }))));
        let broken = Message { body: Some(Bytes::from_static(b"{")), ..order };
        let failed = decode::<Order>(&registry, &broken);
        assert!(matches!(failed, Err(TypedError::Decode(DecodeError::Failed { .. }))));
    }
}
