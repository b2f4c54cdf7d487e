#include "lockstep/base/dtype.h"

#include "lockstep/base/error.h"

namespace lockstep {

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::F64:
    case DType::I64:
      return 8;
    case DType::F32:
    case DType::I32:
      return 4;
    case DType::F16:
    case DType::BF16:
      return 2;
    case DType::U8:
    case DType::Bool:
      return 1;
  }
  fail<InternalError>("unknown dtype {}", static_cast<int>(dtype));
}

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return "f32";
    case DType::F64:
      return "f64";
    case DType::F16:
      return "f16";
    case DType::BF16:
      return "bf16";
    case DType::I32:
      return "i32";
    case DType::I64:
      return "i64";
    case DType::U8:
      return "u8";
    case DType::Bool:
      return "bool";
  }
  fail<InternalError>("unknown dtype {}", static_cast<int>(dtype));
}

DType dtype_named(std::string_view name) {
  for (DType dtype : {DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64,
                      DType::U8, DType::Bool}) {
    if (name_of(dtype) == name) return dtype;
  }
  fail<UsageError>("[dtype] there is no dtype called {}", name);
}

bool is_floating(DType dtype) {
  return dtype == DType::F32 || dtype == DType::F64 || dtype == DType::F16 || dtype == DType::BF16;
}

}  // namespace lockstep
