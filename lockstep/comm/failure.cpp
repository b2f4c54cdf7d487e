#include "lockstep/comm/failure.h"

#include <new>

#include "lockstep/base/error.h"
#include "lockstep/device/memory_error.h"

namespace lockstep {

Failure failure_of(int rank, const std::exception_ptr& error) {
  const auto failure = [&](FailureKind kind, const std::exception& what) {
    return Failure{.rank = rank, .kind = kind, .message = what.what()};
  };
  try {
    std::rethrow_exception(error);
  } catch (const CommError& what) {
    return failure(FailureKind::Comm, what);
  } catch (const MemoryError& what) {
    return failure(FailureKind::Memory, what);
  } catch (const UsageError& what) {
    return failure(FailureKind::Usage, what);
  } catch (const DataError& what) {
    return failure(FailureKind::Data, what);
  } catch (const InternalError& what) {
    return failure(FailureKind::Internal, what);
  } catch (const std::bad_alloc& what) {
    return failure(FailureKind::Memory, what);
  } catch (const std::exception& what) {
    return failure(FailureKind::Other, what);
  } catch (...) {
    return {.rank = rank, .message = "an exception that is no std::exception"};
  }
}

void throw_failure(const Failure& failure) {
  switch (failure.kind) {
    case FailureKind::Comm:
      throw CommError(failure.message);
    case FailureKind::Usage:
      throw UsageError(failure.message);
    case FailureKind::Data:
      throw DataError(failure.message);
    case FailureKind::Memory:
      throw MemoryError(failure.message);
    case FailureKind::Internal:
      throw InternalError(failure.message);
    case FailureKind::Other:
      break;
  }
  throw Error(failure.message);
}

}  // namespace lockstep
