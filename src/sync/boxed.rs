//! Large arrays.

/// Makes an array that is never on the stack, because threads of inference servers may have small stacks.
pub fn boxed<T, const N: usize>(make: impl Fn() -> T) -> Box<[T; N]> {
    let slice: Box<[T]> = (0..N).map(|_| make()).collect();
    match slice.try_into() {
        Ok(array) => array,
        Err(_) => unreachable!("a slice of N makes an array of N"),
    }
}
