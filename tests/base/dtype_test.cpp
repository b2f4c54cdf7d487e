#include "lockstep/base/dtype.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(DType, NamesAndTypesAreOneToOne) {
  for (DType dtype : {DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64,
                      DType::U8, DType::Bool}) {
    EXPECT_EQ(dtype_named(name_of(dtype)), dtype);
  }
  EXPECT_THROW(dtype_named("float"), UsageError);
}

TEST(DType, SizesMatchTheCppTypes) {
  EXPECT_EQ(size_of(dtype_of<float>()), sizeof(float));
  EXPECT_EQ(size_of(dtype_of<double>()), sizeof(double));
  EXPECT_EQ(size_of(dtype_of<std::int32_t>()), sizeof(std::int32_t));
  EXPECT_EQ(size_of(dtype_of<std::int64_t>()), sizeof(std::int64_t));
  EXPECT_EQ(size_of(dtype_of<std::uint8_t>()), 1u);
  EXPECT_EQ(size_of(dtype_of<bool>()), sizeof(bool));
  EXPECT_EQ(size_of(DType::BF16), 2u);
}

TEST(DType, OnlyFloatsAreFloating) {
  EXPECT_TRUE(is_floating(DType::F32) && is_floating(DType::F64) && is_floating(DType::BF16));
  EXPECT_FALSE(is_floating(DType::I32) || is_floating(DType::U8) || is_floating(DType::Bool));
}

TEST(Errors, ChecksThrowTheDocumentedKind) {
  EXPECT_NO_THROW(require(true, "never"));
  EXPECT_THROW(require(false, "asked for {}", 1), UsageError);
  EXPECT_THROW(ensure(false, "broke {}", 1), InternalError);
  try {
    fail<DataError>("{}: record {} is cut short", "a.idx", 3);
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "a.idx: record 3 is cut short");
  }
}

}  // namespace
}  // namespace lockstep
