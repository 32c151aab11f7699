//! Bounds the bodies of answers that are errors, and keeps their status.
//!
//! The status says what to do, the body only why. Behind the API server's proxy the body comes from a node's address,
//! which another host may have taken over. It is read up to [`LONGEST`] bytes and for [`PATIENCE`]; the rest is
//! dropped, and over HTTP/1 its connection is closed.

use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Response;
use http_body::Body;
use http_body_util::{BodyExt, Either, Full};
use tokio::time::timeout;
use tower::BoxError;

/// Bytes of a body; those of the API server have a few hundred.
const LONGEST: usize = 64 << 10;
/// Time for a body, from its head on; requests have 1.5 s at least for both.
const PATIENCE: Duration = Duration::from_millis(500);

/// An answer whose body is bounded if it is an error.
pub(super) async fn bounded<B: Body<Data = Bytes>>(
    answer: Response<B>,
) -> Result<Response<Either<B, Full<Bytes>>>, BoxError> {
    let status = answer.status();
    if !status.is_client_error() && !status.is_server_error() {
        return Ok(answer.map(Either::Left));
    }
    let (head, body) = answer.into_parts();
    let (mut body, mut read) = (pin!(body), BytesMut::new());
    let all = async {
        while let Some(Ok(frame)) = body.frame().await {
            let data = frame.into_data().unwrap_or_default();
            read.extend_from_slice(&data[..data.len().min(LONGEST - read.len())]);
            if read.len() == LONGEST {
                break;
            }
        }
    };
    // What came until then is enough.
    let _ = timeout(PATIENCE, all).await;
    Ok(Response::from_parts(head, Either::Right(Full::new(read.freeze()))))
}
