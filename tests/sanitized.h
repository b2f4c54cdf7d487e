// Defines LOCKSTEP_SANITIZED if a sanitizer replaces malloc and tracks every thread.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LOCKSTEP_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LOCKSTEP_SANITIZED 1
#endif
#endif
