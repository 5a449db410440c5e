//! nsqd's options under nsqd's names, and Tidegate's own, checked once.
