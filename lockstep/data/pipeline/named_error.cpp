#include "lockstep/data/pipeline/named_error.h"

#include "lockstep/device/memory_error.h"

namespace lockstep {

StageOutOfMemory::StageOutOfMemory(const std::string& place)
    : what_(std::make_shared<std::string>(
          place + "out of memory; smaller batches, shuffle buffers and caches need less")) {}

StageOutOfMemory::StageOutOfMemory(const std::string& place, const MemoryError& cause)
    : what_(std::make_shared<std::string>(place + cause.what())) {}

void rethrow_at(const std::function<std::string(std::string_view message)>& place) {
  try {
    throw;
  } catch (const MemoryError& error) {  // before its base class, UsageError
    throw StageOutOfMemory(place(error.what()), error);
  } catch (const UsageError& error) {
    throw UsageError(place(error.what()) + error.what());
  } catch (const InternalError& error) {
    throw InternalError(place(error.what()) + error.what());
  } catch (const StageOutOfMemory&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw StageOutOfMemory(place({}));
  } catch (const std::exception& error) {
    throw DataError(place(error.what()) + error.what());
  } catch (...) {
    throw DataError(place({}) + "something other than a std::exception was thrown");
  }
}

void rethrow_at(const std::string& place) {
  rethrow_at([&](std::string_view) { return place; });
}

void rethrow_at(const std::string& stage, const SampleId& sample) {
  rethrow_at([&](std::string_view message) {
    // Errors of readers already name the file.
    const bool named = sample.file != nullptr && message.starts_with(*sample.file);
    return named ? fmt::format("[{}] ", stage) : fmt::format("[{}] {}: ", stage, describe(sample));
  });
}

std::exception_ptr caught_in(const std::string& stage) noexcept {
  try {
    throw;
  } catch (const StageOutOfMemory&) {
    return std::current_exception();
  } catch (const MemoryError& error) {
    try {
      throw StageOutOfMemory("[" + stage + "] ", error);
    } catch (...) {
      return std::current_exception();
    }
  } catch (const std::bad_alloc&) {
    try {
      throw StageOutOfMemory("[" + stage + "] ");
    } catch (...) {
      return std::current_exception();
    }
  } catch (...) {
    return std::current_exception();
  }
}

std::string describe(const SampleId& sample) {
  return sample.file != nullptr ? fmt::format("{}: record {}", *sample.file, sample.record)
                                : fmt::format("sample {} of epoch {}", sample.number, sample.epoch);
}

}  // namespace lockstep
