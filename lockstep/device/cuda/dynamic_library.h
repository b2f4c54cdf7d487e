// A shared library that is opened when it is first needed, so that programs start without it.
#pragma once

#include <string>

namespace lockstep {

class DynamicLibrary {
 public:
  // UsageError, naming the library, what the system says and `remedy` ("install cuDNN 9"), where it
  // cannot be opened. It stays open for the process's life: libraries keep state of their own.
  DynamicLibrary(std::string name, std::string remedy);

  // Looks up a function of the library: library.find(abort_, "ncclCommAbort"). UsageError where it
  // has none of that name: it is too old.
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
