// A shared library that is opened on first use, so that programs start without it.
#pragma once

#include <string>

namespace lockstep {

class DynamicLibrary {
 public:
  // UsageError, naming the library, what the system says and `remedy` ("install cuDNN 9"), if it
  // cannot be opened. It stays open until the process ends, because libraries keep global state.
  DynamicLibrary(std::string name, std::string remedy);

  // Looks up a function of the library: library.find(abort_, "ncclCommAbort"). UsageError if there
  // is none of that name: the library is too old.
  template <class Function>
  void find(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(address(symbol));
  }

 private:
  void* address(const char* symbol) const;

  std::string name_;
  std::string remedy_;
  void* handle_ = nullptr;
};

}  // namespace lockstep
