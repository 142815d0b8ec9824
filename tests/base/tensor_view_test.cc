#include "base/tensor_view.h"

#include <numeric>
#include <vector>

#include "base/vec.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

TEST(TensorViewTest, IndexesRowMajor) {
  std::vector<int> data(2 * 3 * 4);
  std::iota(data.begin(), data.end(), 0);
  const auto view = TensorView<int, 3>::RowMajor(data.data(), {2, 3, 4});
  EXPECT_EQ(view.stride(0), 12);
  EXPECT_EQ(view.stride(2), 1);
  int next = 0;
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 4; ++k) EXPECT_EQ(view(i, j, k), next++);
    }
  }
}

TEST(TensorViewTest, HonoursStrides) {
  int data[] = {0, 1, 2, 3, 4, 5};
  const TensorView<int, 2> transposed{data, {3, 2}, {1, 3}};
  EXPECT_EQ(transposed(2, 1), 5);
  EXPECT_EQ(transposed(1, 0), 1);
  transposed(0, 1) = 9;
  EXPECT_EQ(data[3], 9);
}

TEST(VecTest, IsAlignedToItsSize) {
  EXPECT_EQ(alignof(Vec<float, 4>), 16u);
  EXPECT_EQ(sizeof(Vec<float, 16>), 64u);
  Vec<int, 2> vec{{1, 2}};
  vec[1] = 5;
  EXPECT_EQ(vec, (Vec<int, 2>{{1, 5}}));
}

}  // namespace
}  // namespace quire
