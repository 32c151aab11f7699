//! One body of code, compiled for several instruction sets and picked at run time.
//!
//! The loops over vectors are written so that the compiler can use whatever the processor has:
//! eight keys of a bucket or sixteen starts of a node are compared at once with AVX2, in
//! halves or quarters with the SSE2 that every x86-64 has, one by one elsewhere. The answers
//! are the same.

#![allow(unsafe_code)]

/// Runs `body` with the best instructions that this processor has.
#[inline]
pub(crate) fn widest<R>(body: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("bmi1")
            && std::arch::is_x86_feature_detected!("bmi2")
        {
            // SAFETY: the processor has the features that the function is compiled for.
            return unsafe { with_avx2(body) };
        }
    }
    body()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn with_avx2<R>(body: impl FnOnce() -> R) -> R {
    body()
}
