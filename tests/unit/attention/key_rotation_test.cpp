#include "attention/key_rotation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace karez {
namespace {

std::vector<float> random_vector(int size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<std::size_t>(size));
  for (float& x : out) {
    x = normal(random);
  }
  return out;
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return sum;
}

TEST(KeyRotation, LeavesDotProductsAsTheyAreForEveryHeadDim) {
  for (const int dim : {16, 48, 64, 80, 96, 112, 128, 256, 512}) {
    std::vector<float> a = random_vector(dim, 1);
    std::vector<float> b = random_vector(dim, 2);
    const double before = dot(a, b);
    const double norm = dot(a, a);
    rotate_key(a);
    rotate_key(b);
    EXPECT_NEAR(dot(a, b), before, 1e-4) << dim;
    EXPECT_NEAR(dot(a, a), norm, 1e-3) << dim;
  }
}

TEST(KeyRotation, RotatingBackIsTheInverse) {
  for (const int dim : {16, 48, 64, 80, 112, 256, 512}) {
    const std::vector<float> before = random_vector(dim, 3);
    std::vector<float> x = before;
    rotate_key(x);
    rotate_key_back(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(x[i], before[i], 2e-6F) << dim;
    }
  }
}

TEST(KeyRotation, SpreadsOneCoordinateOverItsPowerOfTwoPart) {
  std::vector<float> x(80, 0.0F);
  x[5] = 8.0F;
  rotate_key(x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_FLOAT_EQ(std::fabs(x[i]), i < 64 ? 1.0F : 0.0F);
  }
}

TEST(KeyRotation, SignsAreNotAllEqual) {
  std::vector<float> x(64, 1.0F);
  rotate_key(x);
  // Without signs all of it would lie in the first coordinate.
  EXPECT_LT(std::fabs(x[0]), 6.0F);
}

}  // namespace
}  // namespace karez
